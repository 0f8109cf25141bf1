// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/columns.h"

#include <algorithm>
#include <array>

#include "millrace/formats/mp4.h"
#include "millrace/formats/parquet.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

constexpr int64_t kSmallestTable = 12;  // the magic twice, and the footer's length

void append(ColumnValues& all, const ColumnValues& more) {
  const int64_t before = all.rows;
  all.kind = more.kind;
  all.rows += more.rows;
  all.integers.insert(all.integers.end(), more.integers.begin(), more.integers.end());
  all.reals.insert(all.reals.end(), more.reals.begin(), more.reals.end());
  all.texts.insert(all.texts.end(), more.texts.begin(), more.texts.end());
  if (!more.nulls.empty()) {
    all.nulls.resize(static_cast<size_t>(before), 0);
    all.nulls.insert(all.nulls.end(), more.nulls.begin(), more.nulls.end());
  } else if (!all.nulls.empty()) {
    all.nulls.resize(static_cast<size_t>(all.rows), 0);
  }
  if (all.offsets.empty()) all.offsets = {0};
  const int64_t base = all.offsets.back();
  for (size_t i = 1; i < more.offsets.size(); ++i) all.offsets.push_back(base + more.offsets[i]);
  all.fields.resize(more.fields.size());
  for (size_t i = 0; i < more.fields.size(); ++i) append(all.fields[i], more.fields[i]);
}

}  // namespace

Status check_table_ends(const RandomReader& file) {
  if (file.size() == 0) return fail(ErrorCode::kCorruption, "it is empty");
  std::array<char, 24> head{};
  const auto size = static_cast<size_t>(std::min<int64_t>(file.size(), static_cast<int64_t>(head.size())));
  RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(head.data(), size))));
  const std::string_view text(head.data(), size);
  if (is_lfs_pointer(text)) {
    return fail(ErrorCode::kCorruption, "it is a Git LFS pointer and not the table (git lfs pull fetches that)");
  }
  if (!text.starts_with("PAR1")) return fail(ErrorCode::kCorruption, "it is no Parquet table (no PAR1 at its begin)");
  std::array<char, 4> tail{};
  if (file.size() < kSmallestTable) return fail(ErrorCode::kCorruption, "it is cut off behind its first bytes");
  RETURN_IF_ERROR(file.read_at(file.size() - 4, std::as_writable_bytes(std::span(tail))));
  if (std::string_view(tail.data(), tail.size()) != "PAR1") {
    return fail(ErrorCode::kCorruption,
                "it has no footer (no PAR1 at its end): it is cut off, or its writer did not finish");
  }
  return {};
}

const ColumnType* TableFooter::find(std::string_view column) const {
  const auto found =
      std::find_if(columns.begin(), columns.end(), [&](const auto& type) { return type.name == column; });
  return found == columns.end() ? nullptr : &*found;
}

const std::string* TableFooter::metadata_of(std::string_view key) const {
  const auto found =
      std::find_if(metadata.begin(), metadata.end(), [&](const auto& pair) { return pair.first == key; });
  return found == metadata.end() ? nullptr : &found->second;
}

Result<std::unique_ptr<ColumnTable>> open_columns(const RandomReader& file) {
  RETURN_IF_ERROR(with_context(check_table_ends(file), file.name()));
  const Result<const ParquetLibrary*> library = parquet_library();
  if (!library) return with_context(Result<std::unique_ptr<ColumnTable>>(tl::unexpected(library.error())), file.name());
  Result<std::unique_ptr<ColumnTable>> table;
  (*library)->open_columns(file, table);
  return table;
}

Result<std::vector<ColumnValues>> read_columns(ColumnTable& table, std::span<const std::string> columns,
                                               int64_t most_rows) {
  if (table.footer().rows > most_rows) {
    return fail(ErrorCode::kResourceExhausted, "a table of {} rows, more than {}", table.footer().rows, most_rows);
  }
  std::vector<ColumnValues> all(columns.size());
  RETURN_IF_ERROR(table.scan(columns, 1 << 16, [&](int64_t, std::span<const ColumnValues> values) -> Status {
    for (size_t i = 0; i < values.size(); ++i) append(all[i], values[i]);
    return {};
  }));
  return all;
}

}  // namespace millrace::formats
