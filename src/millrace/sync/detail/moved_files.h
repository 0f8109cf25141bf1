// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of a move that are at the target, and their removal from the source. A file that is another version than
// the one that was copied stays. Memory does not grow with the number of files. Not thread-safe.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/sync/detail/path_spool.h"
#include "millrace/sync/entries.h"

namespace millrace::sync {

class MovedFiles {
 public:
  // `source` as it was listed. REQUIRES: paths in byte order.
  void add(const std::string& path, const ObjectInfo& source);
  // An empty folder; `path` ends in '/'.
  void add_folder(const std::string& path) { folders_.push_back(path); }

  struct Report {
    int64_t files = 0;   // removed
    int64_t failed = 0;  // still there
    std::optional<Error> first_failure;
  };
  // Lists `source` again and removes what was added, once. Folders of a file system that became empty by that go too,
  // and `source` itself; others that are empty stay. Errors: those of the listing, of the temporary file, cancelled.
  [[nodiscard]] Result<Report> remove(const Location& source, const Filter& filter, const std::stop_token& stop);

 private:
  PathSpool paths_;
  std::vector<std::string> folders_;  // memory for each folder, not for each file
  Status spooled_;                    // the first failure of add()
};

}  // namespace millrace::sync
