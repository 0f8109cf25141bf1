// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/meta_tables.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace millrace::lerobot {
namespace {

size_t list_depth(const Json& value) {
  size_t depth = 0;
  for (const Json* at = &value; at->is_array() && !at->empty(); at = &at->front()) ++depth;
  return depth;
}

// The values and offsets of nested lists, row by row.
class NestedLists {
 public:
  explicit NestedLists(size_t depth) : offsets_(depth, std::vector<int32_t>{0}) {}

  // False: it is no list of this depth, or holds something else than numbers.
  bool add(const Json& value, size_t level = 0) {
    if (level == offsets_.size()) {
      if (!value.is_number() && !value.is_boolean() && !value.is_null()) return false;
      values_.push_back(value.is_null()      ? std::numeric_limits<double>::quiet_NaN()
                        : value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0)
                                             : value.get<double>());
      return true;
    }
    if (!value.is_array()) return false;
    for (const Json& element : value) {
      if (!add(element, level + 1)) return false;
    }
    const size_t below = level + 1 == offsets_.size() ? values_.size() : offsets_[level + 1].size() - 1;
    offsets_[level].push_back(static_cast<int32_t>(below));
    return true;
  }

  formats::ColumnToWrite column(std::string name, bool is_count) && {
    formats::ColumnToWrite column{.name = std::move(name)};
    if (is_count) {
      std::vector<int64_t> counts;
      for (const double value : values_) counts.push_back(static_cast<int64_t>(value));
      column.values = std::move(counts);
    } else {
      column.values = std::move(values_);
    }
    column.offsets = std::move(offsets_);
    return column;
  }

 private:
  std::vector<std::vector<int32_t>> offsets_;
  std::vector<double> values_;
};

}  // namespace

formats::TableToWrite task_table(const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < texts.size(); ++i) numbers.push_back(static_cast<int64_t>(i));
  const auto column = [](const char* name, const char* pandas, const char* numpy) {
    return Json{
        {"name", name}, {"field_name", name}, {"pandas_type", pandas}, {"numpy_type", numpy}, {"metadata", nullptr}};
  };
  const Json pandas = {
      {"index_columns", Json::array({"task"})},
      {"column_indexes", Json::array()},
      {"columns", Json::array({column("task_index", "int64", "int64"), column("task", "unicode", "object")})},
      {"creator", {{"library", "millrace"}, {"version", "1"}}},
      {"pandas_version", "2.0.0"}};
  formats::TableToWrite table;
  table.columns = {{.name = "task_index", .values = numbers}, {.name = "task", .values = texts}};
  table.metadata["pandas"] = pandas.dump();
  return table;
}

Result<formats::ColumnToWrite> stat_column(std::string name, std::span<const Json* const> values, bool is_count) {
  NestedLists lists(values.empty() ? 1 : list_depth(*values.front()));
  for (size_t row = 0; row < values.size(); ++row) {
    if (!lists.add(*values[row])) {
      return fail(ErrorCode::kCorruption, "{} of episode {} is not a list of numbers as that of the first episode",
                  name, row);
    }
  }
  return std::move(lists).column(std::move(name), is_count);
}

}  // namespace millrace::lerobot
