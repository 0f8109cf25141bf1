// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: Storage::submit. What waits for the disk alone goes to the rings, all else to the executor, also
// what a ring could not move whole: so there is one place that knows short transfers, errors and other ways.

#include <span>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

void submit_local(const Context& context, std::span<const Operation> operations, CompletionQueue& queue);

}  // namespace millrace::local
