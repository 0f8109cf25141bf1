// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads Parquet tables by columns: the footer, and the values of chosen columns as plain vectors. Arrow reads them, in
// the library that parquet.h opens on first use. A table is for one thread at a time; several tables may be read in
// parallel.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

enum class ColumnKind {
  kBool,
  kInteger,
  kFloat,  // half, single or double
  kText,   // strings and binary
  kList,
  kStruct,
  kOther,  // times, decimals, maps, ...: no values are read
};

// The type of a column of the table, of the element of a list, or of a field of a struct.
struct ColumnType {
  std::string name;   // name of the column or field
  std::string arrow;  // "fixed_size_list<element: float>[6]": Arrow's name, for messages
  ColumnKind kind = ColumnKind::kOther;
  int bits = 0;                    // of a number
  bool is_unsigned = false;        // of an integer
  int64_t fixed_size = -1;         // of a list of fixed length: the length; else -1
  std::vector<ColumnType> fields;  // the list's element, or the struct's fields
};

// The rows of one row group, and the least and greatest value of each integer column for which the writer stored them.
struct RowGroup {
  struct Range {
    std::string column;
    int64_t min = 0, max = 0;
  };
  int64_t rows = 0;
  std::vector<Range> ranges;
};

struct TableFooter {
  int64_t rows = 0;
  std::vector<ColumnType> columns;
  std::vector<RowGroup> groups;
  std::vector<std::pair<std::string, std::string>> metadata;  // "huggingface", "pandas", ...

  const ColumnType* find(std::string_view column) const;
  // Returns null if the footer has no such key.
  const std::string* metadata_of(std::string_view key) const;
};

// The values of some rows of a column. `kind` decides which vectors are filled. A null row has an empty list, a zero
// or an empty text.
struct ColumnValues {
  ColumnKind kind = ColumnKind::kOther;
  int64_t rows = 0;
  std::vector<int64_t> integers;     // [rows], bools too
  std::vector<double> reals;         // [rows]
  std::vector<std::string> texts;    // [rows]
  std::vector<uint8_t> nulls;        // [rows], 1: null; empty: no row is null
  std::vector<int64_t> offsets;      // [rows + 1] of a list: row i is [offsets[i], offsets[i + 1]) of fields[0]
  std::vector<ColumnValues> fields;  // a list's elements, or a struct's fields in the order of the type

  bool is_null(int64_t row) const { return !nulls.empty() && nulls[static_cast<size_t>(row)] != 0; }
  // Returns the number in row `row`, from `integers` or `reals`. REQUIRES: a kind with numbers.
  double number(int64_t row) const {
    return kind == ColumnKind::kFloat ? reals[static_cast<size_t>(row)]
                                      : static_cast<double>(integers[static_cast<size_t>(row)]);
  }
};

class ColumnTable {
 public:
  virtual ~ColumnTable() = default;
  virtual const TableFooter& footer() const = 0;

  // Calls `visit(first_row, values)` for the rows of the table in order, at most `batch_rows` at a time. `values` has
  // an entry for each of `columns`. An error of `visit` ends the scan. Memory: a batch, and up to a row group or 32
  // MiB of read-ahead.
  // Errors: not_found (no such column), corruption, those of read_at and of `visit`.
  [[nodiscard]] virtual Status scan(std::span<const std::string> columns, int64_t batch_rows,
                                    const std::function<Status(int64_t, std::span<const ColumnValues>)>& visit) = 0;

  // Does the same as scan() for the rows of one row group; `first_row` counts from the first row of the table.
  // REQUIRES: `group` is one of the footer's.
  [[nodiscard]] virtual Status scan_group(
      size_t group, std::span<const std::string> columns, int64_t batch_rows,
      const std::function<Status(int64_t, std::span<const ColumnValues>)>& visit) = 0;
};

// Checks the first and last bytes of a Parquet file, to report an empty file, a cut file or a Git LFS pointer in plain
// words. Does not use Arrow. Errors: corruption (without the file's name), those of read_at.
[[nodiscard]] Status check_table_ends(const RandomReader& file);

// Reads the footer. `file` must outlive the table. Errors: unsupported (the library or its pyarrow is missing; says
// what to install), corruption (not Parquet, cut off, a Git LFS pointer); those of read_at.
[[nodiscard]] Result<std::unique_ptr<ColumnTable>> open_columns(const RandomReader& file);

// Reads all rows of some columns at once; for small tables. Errors: as scan(); resource_exhausted (more than
// `most_rows`).
[[nodiscard]] Result<std::vector<ColumnValues>> read_columns(ColumnTable& table, std::span<const std::string> columns,
                                                             int64_t most_rows);

}  // namespace millrace::formats
