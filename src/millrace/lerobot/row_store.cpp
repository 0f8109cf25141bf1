// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/formats/columns.h"
#include "millrace/lerobot/numbers.h"

namespace millrace::lerobot {
namespace {

using formats::ColumnKind;
using formats::ColumnValues;

constexpr int64_t kBatchRows = 16384;

bool has_nulls(const ColumnValues& values) {
  return std::ranges::any_of(values.nulls, [](uint8_t null) { return null != 0; }) ||
         std::ranges::any_of(values.fields, has_nulls);
}

// Integers that a double cannot hold must not pass through one.
bool append_integers(const ColumnValues& values, size_t dim, std::vector<int64_t>& out) {
  if (values.kind == ColumnKind::kInteger || values.kind == ColumnKind::kBool) {
    out.insert(out.end(), values.integers.begin(), values.integers.end());
    return dim == 1;
  }
  if (values.kind != ColumnKind::kList || values.fields.size() != 1) return false;
  const ColumnValues& inner = values.fields[0];
  if (inner.kind != ColumnKind::kInteger && inner.kind != ColumnKind::kBool) return false;
  for (int64_t row = 0; row < values.rows; ++row) {
    const int64_t begin = values.offsets[static_cast<size_t>(row)], end = values.offsets[static_cast<size_t>(row) + 1];
    if (end - begin != static_cast<int64_t>(dim)) return false;
    out.insert(out.end(), inner.integers.begin() + begin, inner.integers.begin() + end);
  }
  return true;
}

bool append(const StoredColumn& column, const ColumnValues& values, std::vector<double>& flat,
            StoredRows::Column& out) {
  if (has_nulls(values)) return false;
  if (column.type == ValueType::kText) {
    if (values.kind != ColumnKind::kText) return false;
    out.texts.insert(out.texts.end(), values.texts.begin(), values.texts.end());
    return true;
  }
  if (column.type == ValueType::kInt64 && append_integers(values, column.dim, out.integers)) return true;
  const auto numbers = numbers_of_rows(values, column.dim, flat);
  if (numbers.size() != static_cast<size_t>(values.rows) * column.dim) return false;
  switch (column.type) {
    case ValueType::kFloat32:
      for (const double value : numbers) out.reals.push_back(static_cast<float>(value));
      return true;
    case ValueType::kBool:
      for (const double value : numbers) out.bools.push_back(value != 0 ? 1 : 0);
      return true;
    case ValueType::kInt64:
    case ValueType::kText:
      return false;
  }
  return false;
}

int64_t bytes_of(const StoredRows::Column& column) {
  size_t bytes = column.reals.capacity() * sizeof(float) + column.integers.capacity() * sizeof(int64_t) +
                 column.bools.capacity() + column.texts.capacity() * sizeof(std::string);
  for (const std::string& text : column.texts) bytes += text.capacity();
  return static_cast<int64_t>(bytes);
}

}  // namespace

RowStore::RowStore(const Tree& tree, std::vector<StoredColumn> columns, int64_t most_bytes)
    : tree_(tree), columns_(std::move(columns)), most_bytes_(most_bytes) {}

Result<std::shared_ptr<const StoredRows>> RowStore::read(const std::string& path) const {
  const std::string shown = fmt::format("{}/{}", tree_.root().url, path);
  ASSIGN_OR_RETURN(const auto file, tree_.open(path));
  ASSIGN_OR_RETURN(const auto table, with_context(formats::open_columns(*file), shown));
  auto rows = std::make_shared<StoredRows>();
  rows->rows = table->footer().rows;
  rows->columns.resize(columns_.size());
  std::vector<std::string> names;
  for (const StoredColumn& column : columns_) {
    names.push_back(column.name);
    if (table->footer().find(column.name) == nullptr) {
      return fail(ErrorCode::kCorruption, "{}: it has no column {}, which meta/info.json declares [LR023]", shown,
                  column.name);
    }
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    const size_t size = static_cast<size_t>(rows->rows) * columns_[i].dim;
    if (columns_[i].type == ValueType::kFloat32) rows->columns[i].reals.reserve(size);
    if (columns_[i].type == ValueType::kInt64) rows->columns[i].integers.reserve(size);
    if (columns_[i].type == ValueType::kBool) rows->columns[i].bools.reserve(size);
    if (columns_[i].type == ValueType::kText) rows->columns[i].texts.reserve(size);
  }
  std::vector<double> flat;
  RETURN_IF_ERROR(table->scan(names, kBatchRows, [&](int64_t first, std::span<const ColumnValues> values) -> Status {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!append(columns_[i], values[i], flat, rows->columns[i])) {
        return fail(ErrorCode::kCorruption,
                    "{}: column {}, rows {} to {}: a null, or not {} numbers in each row [LR025]; `millrace lerobot "
                    "validate` names the rows",
                    shown, columns_[i].name, first, first + values[i].rows - 1, columns_[i].dim);
      }
    }
    return {};
  }));
  for (const auto& column : rows->columns) rows->bytes += bytes_of(column);
  return rows;
}

Result<std::shared_ptr<const StoredRows>> RowStore::get(const std::string& path) {
  {
    MutexLock lock(mutex_);
    const auto known = files_.find(path);
    if (known != files_.end()) {
      used_.splice(used_.begin(), used_, known->second.place);
      return known->second.rows;
    }
  }
  ASSIGN_OR_RETURN(auto rows, read(path));
  MutexLock lock(mutex_);
  const auto other = files_.find(path);
  if (other != files_.end()) return other->second.rows;
  used_.push_front(path);
  files_[path] = {rows, used_.begin()};
  bytes_ += rows->bytes;
  while (bytes_ > most_bytes_ && used_.size() > 1) {
    const auto last = files_.find(used_.back());
    bytes_ -= last->second.rows->bytes;
    files_.erase(last);
    used_.pop_back();
  }
  return rows;
}

}  // namespace millrace::lerobot
