// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes one object or what is below a folder. Thread-safe.

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/progress.h"
#include "millrace/sync/filter.h"

namespace millrace::sync {

struct RmOptions {
  bool recursive = false;
  bool force_root = false;  // allow everything of a bucket or file system at once
  bool uploads = false;     // instead, what was begun and never finished at the URL or below it (list_uploads)
  bool dry_run = false;     // remove nothing; events and report say what would be
  Filter filter;            // with recursive; without rules, what Millrace keeps there goes too
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

// Links are removed, never what they lead to; directories of a file system stay. Errors: not_found, invalid_argument (a
// folder without `recursive`, a root without `force_root`), those of listing, cancelled; objects that cannot be removed
// are in the report and the rest goes on.
[[nodiscard]] Result<RmReport> rm(const std::string& url, const RmOptions& options = {}, std::stop_token stop = {},
                                  Progress* progress = nullptr);

}  // namespace millrace::sync
