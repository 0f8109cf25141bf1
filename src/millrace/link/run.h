// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps a directory and a bucket in sync until it is stopped. Sweeps at the start and then repeatedly, and between
// sweeps carries the files that the watch of the directory names. Sweeps follow each other quickly while the bucket
// changes, and slowly while it does not. A failure (the bucket is gone, the directory is not mounted) is reported once
// and retried. Blocks.

#include <functional>
#include <stop_token>

#include "millrace/link/notices.h"
#include "millrace/link/sweep.h"

namespace millrace::link {

struct RunOptions {
  bool once = false;    // one sweep, and the files that it postponed; returns the sweep's error
  bool watch = true;    // watch the directory
  bool shares = false;  // share sweeps with other tasks, which carry files at the same time (shared_sweep.h)
  // Names objects that may have changed: the link looks at them at once. Must outlive the run. Default: none.
  NoticeBoard* notices = nullptr;
  std::function<void(const LinkEvent&)> on_event;
  std::function<void(const std::string&)> on_note;  // notes for people: a failure, files that were not removed
};

// Runs a link. A stop is a success. Errors: unavailable (another process runs the link), invalid_argument (`shares`
// with a link for one node), unsupported (no SQLite), those of opening the two sides; with `once` also those of the
// sweep.
[[nodiscard]] Status run_link(const LinkConfig& config, const LinkHome& home, sync::TransferEngine& engine,
                              const RunOptions& options, const std::stop_token& stop);

}  // namespace millrace::link
