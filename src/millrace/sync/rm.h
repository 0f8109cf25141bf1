// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes one object or everything below a folder. Thread-safe.

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/progress.h"
#include "millrace/sync/filter.h"

namespace millrace::sync {

struct RmOptions {
  bool recursive = false;
  bool force_root = false;  // allow removing a whole bucket or file system
  bool uploads = false;     // remove only unfinished uploads at or below the URL (list_uploads)
  bool dry_run = false;     // remove nothing; events and report show what would be removed
  Filter filter;            // with `recursive`; without rules, Millrace's own folders are removed, too
  // Called for each object that was (or would be) removed, in byte order of the path below the folder, with its size.
  std::function<void(const std::string& path, int64_t size)> on_removed;
};
struct RmReport {
  int64_t objects = 0;
  int64_t bytes = 0;
  int64_t failed = 0;
  double seconds = 0;
  std::optional<Error> first_failure;
};

// Removes links, never their targets. Directories of a file system stay. Objects that cannot be removed are in the
// report, and the rest is still removed. Errors: not_found, invalid_argument (a folder without `recursive`, a root
// without `force_root`), those of listing, cancelled.
[[nodiscard]] Result<RmReport> rm(const std::string& url, const RmOptions& options = {}, std::stop_token stop = {},
                                  Progress* progress = nullptr);

}  // namespace millrace::sync
