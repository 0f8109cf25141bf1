// SPDX-License-Identifier: Apache-2.0
#pragma once

// Waits until every file below a path is proven to be in the bucket. Blocks.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/progress.h"
#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

struct WaitReport {
  int64_t files = 0, bytes = 0;
  std::map<std::string, int64_t> proofs;  // "etag" -> files
  int64_t filtered = 0;                   // files that the filter of the link leaves out, which were not checked
  int64_t passed = 0;                     // entries that are not files: links, devices
  double seconds = 0;
};

// Waits for all files at `path` below the directory; "": the whole directory. Errors: timeout (names the first missing
// file and the number of missing files), unavailable (files wait, and no process runs the link), not_found (no such
// path), invalid_argument (the rules of the link never bring a file to the bucket; the filter leaves out the path
// itself, or it is not a file), cancelled.
[[nodiscard]] Result<WaitReport> wait_for(const LinkConfig& config, const LinkHome& home, const std::string& path,
                                          std::optional<std::chrono::duration<double>> timeout,
                                          const std::stop_token& stop, Progress* progress);

}  // namespace millrace::link
