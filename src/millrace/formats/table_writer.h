// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes Parquet tables from columns in memory (numbers, strings, nested lists of them), and copies rows between
// tables. Arrow does the work, in the library that parquet.h describes. Thread-safe.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

// A column: the concatenated values of all rows. Without lists and width, a row is one value. No value is null.
struct ColumnToWrite {
  std::string name;
  std::variant<std::vector<int64_t>, std::vector<float>, std::vector<double>, std::vector<std::string>> values;
  // Offsets of nested lists, the outermost level first. Row r of a level holds elements [offsets[r], offsets[r + 1]) of
  // the level below; the innermost level holds elements of `values`.
  std::vector<std::vector<int32_t>> offsets;
  // Alternative to `offsets`: each row is a list of exactly this many values (Arrow's fixed_size_list).
  int32_t width = 0;
};

struct TableToWrite {
  std::vector<ColumnToWrite> columns;
  std::vector<int64_t> row_groups;  // rows of each group; empty: one group
  std::map<std::string, std::string> metadata;
};

// Appends the file to `out`, compressed by Snappy and with Arrow's schema inside (ARROW:schema), so that fixed-size
// lists are read as such. Equal tables give equal bytes with one version of Arrow.
// Errors: invalid_argument (columns of unequal length, offsets that do not fit, a name twice, row groups that do not
// add up to the rows), unsupported (the library or its pyarrow is missing; says what to install), those of `out`.
[[nodiscard]] Status write_table(const TableToWrite& table, ByteSink& out);

// A Parquet file that rows are copied from. Keeps the row groups that it read last, so that neighbouring stretches of a
// large group are decoded once. For one thread.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t rows() const = 0;
};

// `file` must outlive the source. Errors: unsupported (the library is missing), corruption (not Parquet, or
// truncated), those of reading.
[[nodiscard]] Result<std::unique_ptr<RowSource>> open_rows(const RandomReader& file);

// New values for an integer column of the rows that are copied. The column keeps its type.
struct ColumnChange {
  std::string column;               // a table without this column is copied unchanged
  int64_t first = 0, step = 0;      // row i of the entry gets first + i * step
  std::vector<int64_t> for_values;  // if not empty: the value v becomes for_values[v], a null stays null
};

// Writes one file with rows of several sources. For one thread.
class RowCopier {
 public:
  virtual ~RowCopier() = default;
  // Appends the rows [begin, end) of `source` as a row group. Types, the order of columns and the metadata key
  // "huggingface" (in a form that all versions of `datasets` read) are those of the first call. Later sources may have
  // another order of columns, and lists of any length in place of fixed-size lists or the reverse, if every list has
  // that length. `source` may be closed after the call. Memory: the row groups that the rows are in. Errors:
  // invalid_argument (no rows), out_of_range (rows that the file does not have; a value that for_values lacks),
  // unsupported (columns differ, or a column to change holds no integers: naming the file), corruption, those of
  // reading and of the sink.
  [[nodiscard]] virtual Status add(RowSource& source, int64_t begin, int64_t end,
                                   std::span<const ColumnChange> changes = {}) = 0;
  // Call it once, last. Errors: invalid_argument (no rows were added), those of the sink.
  [[nodiscard]] virtual Status finish() = 0;
};

// `out` must outlive the copier. Errors: unsupported (the library is missing).
[[nodiscard]] Result<std::unique_ptr<RowCopier>> new_row_copier(ByteSink& out);

// Appends a copy of the Parquet file to `out`, with each of `columns` in place of the column of its name. A column
// with a new name comes last. Other columns, row groups and metadata stay. Memory: the table.
// Errors: as write_table(); invalid_argument (a column with another number of rows than the file), corruption, those
// of reading.
[[nodiscard]] Status replace_columns(const RandomReader& file, std::span<const ColumnToWrite> columns, ByteSink& out);

}  // namespace millrace::formats
