// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps a directory and a bucket in step until it is stopped: a sweep at the start and then again and again, and
// between two sweeps the files that the watch of the directory names. Sweeps come soon after each other while the
// bucket changes, and seldom while it does not. A failure (the bucket is gone, the directory is not mounted) is said
// once, and tried again. Blocks.

#include <functional>
#include <stop_token>

#include "millrace/link/notices.h"
#include "millrace/link/sweep.h"

namespace millrace::link {

struct RunOptions {
  bool once = false;    // one sweep, and whatever it postponed; its error is returned
  bool watch = true;    // of the directory
  bool shares = false;  // with other tasks, which carry at the same time (shared_sweep.h)
  // Tells of objects that may have changed: they are looked at at once. Outlives the run. Default: none.
  NoticeBoard* notices = nullptr;
  std::function<void(const LinkEvent&)> on_event;
  std::function<void(const std::string&)> on_note;  // what a person should know: a failure, what was not removed
};

// Errors: unavailable (another process runs the link), invalid_argument (it shares, and the link is for one node),
// unsupported (no SQLite), those of opening the two sides; with
// `once` also those of the sweep. A stop is a success.
[[nodiscard]] Status run_link(const LinkConfig& config, const LinkHome& home, sync::TransferEngine& engine,
                              const RunOptions& options, const std::stop_token& stop);

}  // namespace millrace::link
