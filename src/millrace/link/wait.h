// SPDX-License-Identifier: Apache-2.0
#pragma once

// A barrier: every file below a path is proven to be in the bucket. Blocks.

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
  int64_t filtered = 0;                   // files that the filter of the link leaves out, which nothing was asked about
  int64_t passed = 0;                     // links, devices: what is no file
  double seconds = 0;
};

// `path`: below the directory; "": all of it. Errors: timeout (it names the first file that is not there yet, and how
// many), unavailable (files wait, and no process runs the link), not_found (no such path), invalid_argument (a file
// that the rules of the link never bring to the bucket; the path itself is left out by the filter, or no file),
// cancelled.
[[nodiscard]] Result<WaitReport> wait_for(const LinkConfig& config, const LinkHome& home, const std::string& path,
                                          std::optional<std::chrono::duration<double>> timeout,
                                          const std::stop_token& stop, Progress* progress);

}  // namespace millrace::link
