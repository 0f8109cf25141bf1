// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes the moved files from the source once they are at the target. A file that has another version than the copied
// one stays. Memory does not grow with the number of files. Not thread-safe.

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
  // Adds a copied file. `source`: the file as it was listed. REQUIRES: paths in byte order.
  void add(const std::string& path, const ObjectInfo& source);
  // Adds an empty folder; `path` ends in '/'.
  void add_folder(const std::string& path) { folders_.push_back(path); }

  struct Report {
    int64_t files = 0;   // removed
    int64_t failed = 0;  // still there
    std::optional<Error> first_failure;
  };
  // Lists `source` again and removes the added files. Call it once. Also removes folders of a file system that this
  // emptied, including `source` itself. Other empty folders stay. Errors: those of the listing, of the temporary file,
  // cancelled.
  [[nodiscard]] Result<Report> remove(const Location& source, const Filter& filter, const std::stop_token& stop);

 private:
  PathSpool paths_;
  std::vector<std::string> folders_;  // kept in memory, unlike the files
  Status spooled_;                    // the first failure of add()
};

}  // namespace millrace::sync
