// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owner, mode and times of the folders of a sync: collects the folders of the source as its entries pass, and sets
// those of the target after its files are written. Memory grows with the number of folders, not of files. For one
// thread.

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
    int64_t set = 0;     // differed
    int64_t failed = 0;  // could not be read or set
    std::optional<Error> first_failure;
  };
  // Gives each folder at `target` that differs the attributes of its namesake at `source`, many at once, deeper ones
  // first. With `dry_run` it sets none. A stop ends it early, with what was set until then.
  Report carry(const Location& source, const Location& target, bool dry_run, const std::stop_token& stop) const;

 private:
  void add(std::string_view path);

  std::vector<std::string> folders_ = {""};  // below the two locations; "": themselves
};

}  // namespace millrace::sync
