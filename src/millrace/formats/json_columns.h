// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the kinds of values that the columns of JSON lines have, so that a column has one type in all its rows. A
// value; belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace millrace::formats {

class JsonColumns {
 public:
  enum Kind : uint32_t {
    kNull = 1,
    kBool = 2,
    kInteger = 4,
    kFloat = 8,
    kOther = 16,  // text, lists and objects
    kLarge = 32,  // an integer of 19 digits or more, which int64 may not represent
  };
  struct Column {
    uint32_t kinds = 0;  // a set of Kind
    int64_t rows = 0;    // rows that have the column
  };
  // More columns than this are not tracked: such rows are dictionaries, not tables.
  static constexpr size_t kMostColumns = 4096;

  // Adds whole lines, separated by '\n'; blank lines are not rows. Calls `unread` for each line that is not a plain
  // JSON object, such as one with NaN.
  void add(std::string_view lines, const std::function<void(std::string_view line)>& unread);

  int64_t rows() const { return rows_; }
  // Columns by name, unescaped. Empty with too many columns.
  const std::map<std::string, Column, std::less<>>& columns() const { return columns_; }

 private:
  bool add_line(std::string_view line, size_t capacity);

  std::map<std::string, Column, std::less<>> columns_;
  int64_t rows_ = 0;
  bool has_too_many_ = false;
};

}  // namespace millrace::formats
