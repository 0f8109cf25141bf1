// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads CSV files of numbers and text into arrays; many files may have the same columns. Cells equal those of Python's
// csv.reader for a file opened with newline='' and encoding='utf-8-sig'. Numbers equal float() of the cell, to the
// last bit. If Python would give rows that do not match the header, or a number that is not in the file, reading stops
// with an error that names line and column. Pure functions over bytes; thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::formats {

enum class CsvType : uint8_t { kUnknown, kNumber, kText };

enum class CsvHeader {
  kAuto,  // the first row has the names; refused if it looks like data
  kYes,   // the first row has the names, whatever it looks like
  kNo,    // columns are named c0, c1, ...
};

// Facts that a CSV file does not state about itself.
struct CsvOptions {
  char delimiter = '\0';  // 0: the commonest of , ; | and tab outside quotes in the first line
  char decimal = '.';     // or ','
  CsvHeader header = CsvHeader::kAuto;
  bool empty_is_nan = false;              // an empty cell of a number column is NaN; false: an error, as float('')
  std::vector<std::string> text_columns;  // text columns, whatever their cells look like
};

struct CsvHead {
  char delimiter = ',';
  std::vector<std::string> names;  // no two are equal
  size_t rows_begin = 0;           // the offset of the first row of data
};

// Reads the head of a file. `name` is for messages. Errors: corruption with "name:line:column" (an empty file, bytes
// that are not UTF-8, a name twice, a first row that looks like data (kAuto), a quote that does not end),
// invalid_argument (a file of another format).
[[nodiscard]] Result<CsvHead> read_csv_head(std::string_view text, std::string_view name, const CsvOptions& options);

// Decides each kUnknown type in `types` by the first cell of the column that is not empty: a number or text. Types of
// columns that are empty in this file stay unknown. REQUIRES: a type for each name of `head`. Errors: as read_csv();
// also a first cell that is a number with the other decimal sign.
[[nodiscard]] Status infer_csv_types(std::string_view text, std::string_view name, const CsvHead& head,
                                     const CsvOptions& options, std::vector<CsvType>& types);

// The concatenated cells of a text column.
struct CsvTexts {
  std::string bytes;
  std::vector<uint64_t> ends;  // end of each cell in `bytes`

  std::string_view operator[](size_t row) const {
    const uint64_t begin = row == 0 ? 0 : ends[row - 1];
    return std::string_view(bytes).substr(begin, ends[row] - begin);
  }
};

template <class T>
struct CsvTable {
  int64_t rows = 0;
  std::vector<T> numbers;       // [rows, number columns], row-major
  std::vector<CsvTexts> texts;  // of the text columns, in the file's order
  // For each number column, the first row with a value of 2^24 or more that was rounded to fit T, or -1. Times since
  // 1970 are such values; rounding them loses their differences.
  std::vector<int64_t> rounded;
};

// Reads all rows. T is float or double; a float is the double of Python's float(), rounded. Columns of kUnknown type
// are text. Blank lines at the end of the file are not rows. Errors, all corruption with "name:line:column": a row
// with more or fewer cells than the head has names, a blank line between rows, a cell of a number column that is not a
// number, a cell of a text column that is a number (unless the column is in text_columns), a number too large for T, a
// quote that does not end, text that is not UTF-8 or holds a NUL.
template <class T>
[[nodiscard]] Result<CsvTable<T>> read_csv(std::string_view text, std::string_view name, const CsvHead& head,
                                           std::span<const CsvType> types, const CsvOptions& options);

}  // namespace millrace::formats
