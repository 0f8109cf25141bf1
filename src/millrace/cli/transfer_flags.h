// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between the verbs that move files: flags, output lines and the final report. For one thread.

#include <string>

#include "millrace/cli/command.h"
#include "millrace/sync/sync.h"

namespace millrace::cli {

// The arguments SRC and DST of cp, sync and verify, and the flags.
struct TransferArgs {
  std::string source, target;
  sync::SyncOptions options;
  bool all = false;  // also print skipped files
};
void add_source_and_target(CLI::App& app, std::string& source, std::string& target);

// Adds --include, --exclude and --filter-from, which apply in the order in which they are typed.
void add_filter_flags(CLI::App& app, sync::Filter& filter);
// Adds --links skip|follow.
void add_links_flag(CLI::App& app, bool& follow);
// Adds the flags of cp, sync and stage: --posix, --lustre-layout, --no-records, --bwlimit, --memory, --dry-run, --all
// and the filters. `links`: also adds a flag for symbolic links.
void add_transfer_flags(Verbs& verbs, CLI::App& app, TransferArgs& args, bool links = true);

// Prints the line of a path, unless the path was skipped and `all` is off.
void print_event(const sync::SyncEvent& event, const TransferArgs& args, Output& out);

// Runs a copy. Prints a line for each path that was not skipped, and the report. Returns the result.
using RunTransfer = std::function<Result<sync::SyncReport>(const sync::SyncOptions&, std::stop_token, Progress*)>;
[[nodiscard]] Status run_transfer(const std::string& verb, const TransferArgs& args, const RunTransfer& run,
                                  Context& context);

}  // namespace millrace::cli
