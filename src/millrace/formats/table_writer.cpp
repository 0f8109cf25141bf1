// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/table_writer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "millrace/formats/columns.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

Result<int64_t> rows_of(const ColumnToWrite& column) {
  const auto values = std::visit([](const auto& all) { return static_cast<int64_t>(all.size()); }, column.values);
  if (column.width > 0) {
    if (values % column.width == 0 && column.offsets.empty()) return values / column.width;
    return fail(ErrorCode::kInvalidArgument, "the column {} holds {} values, not lists of {}", column.name, values,
                column.width);
  }
  int64_t elements = values;
  for (size_t level = column.offsets.size(); level-- > 0;) {
    const auto& offsets = column.offsets[level];
    if (offsets.empty() || offsets.front() != 0 || offsets.back() != elements || !std::ranges::is_sorted(offsets)) {
      return fail(ErrorCode::kInvalidArgument, "the offsets of the column {} do not lead from 0 to {}", column.name,
                  elements);
    }
    elements = static_cast<int64_t>(offsets.size()) - 1;
  }
  return elements;
}

Status check_table(const TableToWrite& table) {
  std::optional<int64_t> rows;
  std::set<std::string> names;
  for (const ColumnToWrite& column : table.columns) {
    ASSIGN_OR_RETURN(const int64_t here, rows_of(column));
    if (rows.value_or(here) != here) {
      return fail(ErrorCode::kInvalidArgument, "the column {} has {} rows, the one before has {}", column.name, here,
                  *rows);
    }
    rows = here;
    if (!names.insert(column.name).second) {
      return fail(ErrorCode::kInvalidArgument, "two columns are called {}", column.name);
    }
  }
  const int64_t grouped = std::accumulate(table.row_groups.begin(), table.row_groups.end(), int64_t{0});
  const bool positive = std::ranges::all_of(table.row_groups, [](int64_t group) { return group > 0; });
  if (!table.row_groups.empty() && (grouped != rows.value_or(0) || !positive)) {
    return fail(ErrorCode::kInvalidArgument, "the row groups hold {} rows, the table {}", grouped, rows.value_or(0));
  }
  return {};
}

}  // namespace

Status write_table(const TableToWrite& table, ByteSink& out) {
  RETURN_IF_ERROR(check_table(table));
  ASSIGN_OR_RETURN(const ParquetLibrary* const library, parquet_library());
  Status status;
  library->write_table(table, out, status);
  return status;
}

Status replace_columns(const RandomReader& file, std::span<const ColumnToWrite> columns, ByteSink& out) {
  TableToWrite table;
  table.columns.assign(columns.begin(), columns.end());
  RETURN_IF_ERROR(check_table(table));
  ASSIGN_OR_RETURN(const ParquetLibrary* const library, parquet_library());
  Status status;
  library->replace_columns(file, columns, out, status);
  return status;
}

Result<std::unique_ptr<RowSource>> open_rows(const RandomReader& file) {
  RETURN_IF_ERROR(with_context(check_table_ends(file), file.name()));
  ASSIGN_OR_RETURN(const ParquetLibrary* const library, parquet_library());
  Result<std::unique_ptr<RowSource>> source;
  library->open_rows(file, source);
  return source;
}

Result<std::unique_ptr<RowCopier>> new_row_copier(ByteSink& out) {
  ASSIGN_OR_RETURN(const ParquetLibrary* const library, parquet_library());
  return std::unique_ptr<RowCopier>(library->row_copier(out));
}

}  // namespace millrace::formats
