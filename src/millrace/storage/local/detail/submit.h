// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: Storage::submit. Transfers that wait for the disk alone go to the rings. Everything else goes to
// the executor, including transfers that a ring did not complete, so one place handles short transfers and errors.

#include <span>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

void submit_local(const Context& context, std::span<const Operation> operations, CompletionQueue& queue);

}  // namespace millrace::local
