// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/picture_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/formats/columns.h"

namespace millrace::lerobot {
namespace {

using formats::ColumnKind;
using formats::ColumnType;
using formats::ColumnValues;

constexpr int64_t kBatchRows = 256;

// The bytes of a {bytes, path} struct, or the column itself where a writer leaves out the struct. Null: it is neither.
const ColumnValues* bytes_of(const ColumnType& type, const ColumnValues& values) {
  if (values.kind == ColumnKind::kText) return &values;
  for (size_t i = 0; i < type.fields.size() && i < values.fields.size(); ++i) {
    if (type.fields[i].name == "bytes" && values.fields[i].kind == ColumnKind::kText) return &values.fields[i];
  }
  return nullptr;
}

}  // namespace

Result<std::shared_ptr<const PictureGroup>> PictureStore::read(const std::string& path, int64_t row, Ends& ends,
                                                               size_t& number) const {
  const std::string shown = fmt::format("{}/{}", tree_.root().url, path);
  ASSIGN_OR_RETURN(const auto file, tree_.open(path));
  ASSIGN_OR_RETURN(const auto table, with_context(formats::open_columns(*file), shown));
  ends.clear();
  for (const auto& group : table->footer().groups) ends.push_back((ends.empty() ? 0 : ends.back()) + group.rows);
  number = static_cast<size_t>(std::ranges::upper_bound(ends, row) - ends.begin());
  if (number == ends.size()) {
    return fail(ErrorCode::kCorruption, "{}: row {} is not there: the file has {} rows [LR018]", shown, row,
                table->footer().rows);
  }
  std::vector<const ColumnType*> types;
  for (const std::string& column : columns_) {
    types.push_back(table->footer().find(column));
    if (types.back() == nullptr) {
      return fail(ErrorCode::kCorruption, "{}: it has no column {}, which meta/info.json declares [LR023]", shown,
                  column);
    }
  }
  auto group = std::make_shared<PictureGroup>();
  group->rows = table->footer().groups[number].rows;
  group->first_row = ends[number] - group->rows;
  group->files.resize(columns_.size());
  RETURN_IF_ERROR(table->scan_group(number, columns_, kBatchRows, [&](int64_t, auto values) -> Status {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const ColumnValues* const bytes = bytes_of(*types[i], values[i]);
      if (bytes == nullptr) {
        return fail(ErrorCode::kCorruption, "{}: column {} is {}, not picture bytes [LR024]", shown, columns_[i],
                    types[i]->arrow);
      }
      for (const std::string& text : bytes->texts) group->bytes += static_cast<int64_t>(text.capacity() + sizeof text);
      group->files[i].insert(group->files[i].end(), bytes->texts.begin(), bytes->texts.end());
    }
    return {};
  }));
  return group;
}

std::shared_ptr<const PictureGroup> PictureStore::find(const std::string& path, int64_t row) {
  const auto ends = ends_.find(path);
  if (ends == ends_.end()) return nullptr;
  const auto number = static_cast<size_t>(std::ranges::upper_bound(ends->second, row) - ends->second.begin());
  const auto found = groups_.find(Key(path, number));
  if (found == groups_.end()) return nullptr;
  used_.splice(used_.begin(), used_, found->second.place);
  return found->second.group;
}

std::optional<PictureStore::Known> PictureStore::known(const std::string& path, int64_t row) {
  MutexLock lock(mutex_);
  const auto ends = ends_.find(path);
  if (ends == ends_.end()) return std::nullopt;
  const auto end = std::ranges::upper_bound(ends->second, row);
  if (end == ends->second.end()) return std::nullopt;
  return Known{*end, groups_.contains(Key(path, static_cast<size_t>(end - ends->second.begin())))};
}

Result<std::shared_ptr<const PictureGroup>> PictureStore::get(const std::string& path, int64_t row) {
  {
    MutexLock lock(mutex_);
    if (auto group = find(path, row)) return group;
  }
  Ends ends;
  size_t number = 0;
  ASSIGN_OR_RETURN(auto group, read(path, row, ends, number));
  MutexLock lock(mutex_);
  ends_[path] = std::move(ends);
  if (auto other = find(path, row)) return other;
  used_.push_front({path, number});
  groups_[used_.front()] = {group, used_.begin()};
  bytes_ += group->bytes;
  while (bytes_ > most_bytes_ && used_.size() > 1) {
    const auto last = groups_.find(used_.back());
    bytes_ -= last->second.group->bytes;
    groups_.erase(last);
    used_.pop_back();
  }
  return group;
}

}  // namespace millrace::lerobot
