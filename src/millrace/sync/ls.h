// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is in a folder, page by page: memory stays flat whatever its size. Thread-safe.

#include <functional>
#include <stop_token>
#include <string>

#include "millrace/sync/entries.h"

namespace millrace::sync {

struct LsOptions {
  bool recursive = false;
  bool hidden = false;  // also what Millrace keeps (".millrace")
  Filter filter;
};
struct LsEntry {
  std::string path;  // below what was asked for; of a folder (one level only) with '/' at the end
  bool is_folder = false;
  Entry::Kind kind = Entry::Kind::kFile;
  ObjectInfo info;  // of what is no folder
};
struct LsReport {
  int64_t objects = 0;
  int64_t bytes = 0;
  int64_t folders = 0;  // one level only
};

// Calls `visit` for each entry in byte order of the path; an error it answers ends the listing and is passed on. An
// object is listed as itself. Errors: not_found, those of the storage, cancelled.
[[nodiscard]] Result<LsReport> ls(const std::string& url, const LsOptions& options,
                                  const std::function<Status(const LsEntry&)>& visit, std::stop_token stop = {});

}  // namespace millrace::sync
