// SPDX-License-Identifier: Apache-2.0
#pragma once

// Flags of the verbs that write to object stores: what an object gets beside its bytes.

#include "millrace/cli/command.h"
#include "millrace/sync/transfer.h"

namespace millrace::cli {

// Sets `changes` while the command line is parsed; it must outlive that.
void add_object_flags(CLI::App& app, sync::ObjectChanges& changes);

}  // namespace millrace::cli
