// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads pictures inside data files: PNG or JPEG in a column {bytes, path}. Reads whole row groups; LeRobot writes one
// per episode. Thread-safe. Memory: the most recently used row groups, up to a cap, and those that callers hold.
// Private to this room.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/tree.h"

namespace millrace::lerobot {

// The rows [first_row, first_row + rows) of a data file.
struct PictureGroup {
  int64_t first_row = 0, rows = 0;
  std::vector<std::vector<std::string>> files;  // [column][row]: a PNG or JPEG; empty where the row has none
  int64_t bytes = 0;
};

class PictureStore {
 public:
  // REQUIRES: `tree` outlives it.
  PictureStore(const Tree& tree, std::vector<std::string> columns, int64_t most_bytes)
      : tree_(tree), columns_(std::move(columns)), most_bytes_(most_bytes) {}

  // Returns the row group that contains a row of a data file. Errors: corruption (no such row, no pictures in the
  // column), those of reading.
  [[nodiscard]] Result<std::shared_ptr<const PictureGroup>> get(const std::string& path, int64_t row);
  // The end of a row's group, and whether the group is in memory. known() returns nothing before the file's first
  // get().
  struct Known {
    int64_t end = 0;
    bool in_memory = false;
  };
  std::optional<Known> known(const std::string& path, int64_t row);

 private:
  using Ends = std::vector<int64_t>;  // for each row group of a file: the row after its last row
  using Key = std::pair<std::string, size_t>;
  [[nodiscard]] Result<std::shared_ptr<const PictureGroup>> read(const std::string& path, int64_t row, Ends& ends,
                                                                 size_t& group) const;
  // Returns the row's group if it is in memory, else null.
  std::shared_ptr<const PictureGroup> find(const std::string& path, int64_t row) REQUIRES_LOCK(mutex_);

  const Tree& tree_;
  const std::vector<std::string> columns_;
  const int64_t most_bytes_;
  Mutex mutex_;
  std::map<std::string, Ends, std::less<>> ends_ GUARDED_BY(mutex_);
  std::list<Key> used_ GUARDED_BY(mutex_);  // most recently used first
  struct Entry {
    std::shared_ptr<const PictureGroup> group;
    std::list<Key>::iterator place;
  };
  std::map<Key, Entry> groups_ GUARDED_BY(mutex_);
  int64_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::lerobot
