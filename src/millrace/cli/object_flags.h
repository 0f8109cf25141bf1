// SPDX-License-Identifier: Apache-2.0
#pragma once

// Flags of the verbs that write to object stores: headers, metadata and tags of an object.

#include "millrace/cli/command.h"
#include "millrace/sync/transfer.h"

namespace millrace::cli {

// Adds the flags. They set `changes` while the command line is parsed, so `changes` must outlive the parsing.
void add_object_flags(CLI::App& app, sync::ObjectChanges& changes);

}  // namespace millrace::cli
