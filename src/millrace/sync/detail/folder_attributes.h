// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies owner, mode and times of the folders below the source of a sync: collects the folders as the entries pass, and
// sets those of the target after its files are written. The source and the target themselves are left out, because the
// target may be a folder of many users. Memory grows with the number of folders, not of files. For one thread.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/url.h"
#include "millrace/sync/plan.h"

namespace millrace::sync {

// Whether the object of a listing is an empty "folder/".
bool is_folder_marker(const ObjectInfo& object);

class FolderAttributes {
 public:
  // Takes the folders above a file of the source, an empty folder, and one that a marker stands for. REQUIRES: actions
  // in byte order of the path.
  void see(const Action& action);

  struct Report {
    int64_t set = 0;     // folders that differed, and were set
    int64_t failed = 0;  // folders that could not be read or set
    std::optional<Error> first_failure;
    int64_t left = 0;  // folders of a file system that belong to another user, and stay as they are
    std::optional<Error> first_left;
  };
  // Gives each folder at `target` that differs the attributes of the folder of that path at `source`, many at once,
  // deeper folders first. With `dry_run` it sets none. A stop ends it early.
  Report carry(const Location& source, const Location& target, bool dry_run, const std::stop_token& stop) const;

 private:
  void add(std::string_view path);

  std::vector<std::string> folders_;  // paths below the two locations, in byte order
};

}  // namespace millrace::sync
