// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps columns of data files in memory in the types of training: float32, int64, bool or text. Thread-safe. Memory:
// the values of the most recently used files, up to a cap, and those that callers hold. Private to this room.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

enum class ValueType { kFloat32, kInt64, kBool, kText };

struct StoredColumn {
  std::string name;
  ValueType type = ValueType::kFloat32;
  size_t dim = 1;  // numbers per row
};

// The rows of one file. Each column fills one of its vectors, [rows, dim].
struct StoredRows {
  struct Column {
    std::vector<float> reals;
    std::vector<int64_t> integers;
    std::vector<uint8_t> bools;
    std::vector<std::string> texts;
  };
  int64_t rows = 0;
  std::vector<Column> columns;  // in the order of RowStore::columns()
  int64_t bytes = 0;
};

class RowStore {
 public:
  // REQUIRES: `tree` outlives it.
  RowStore(const Tree& tree, std::vector<StoredColumn> columns, int64_t most_bytes);

  const std::vector<StoredColumn>& columns() const { return columns_; }
  // Errors: corruption (naming the file and column: a vector of another length, a null), those of reading.
  [[nodiscard]] Result<std::shared_ptr<const StoredRows>> get(const std::string& path);

 private:
  [[nodiscard]] Result<std::shared_ptr<const StoredRows>> read(const std::string& path) const;

  const Tree& tree_;
  const std::vector<StoredColumn> columns_;
  const int64_t most_bytes_;
  Mutex mutex_;
  std::list<std::string> used_ GUARDED_BY(mutex_);  // most recently used first
  struct Entry {
    std::shared_ptr<const StoredRows> rows;
    std::list<std::string>::iterator place;
  };
  std::map<std::string, Entry, std::less<>> files_ GUARDED_BY(mutex_);
  int64_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::lerobot
