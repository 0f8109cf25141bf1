// SPDX-License-Identifier: Apache-2.0
#pragma once

// Numbers of Parquet columns, row by row or many rows at once, and their moments. For one thread.

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/formats/columns.h"

namespace millrace::lerobot {

// Exact moments and bounds of each dimension of a feature: sums of differences from the first value, which do not
// cancel as sums of squares do.
struct Moments {
  int64_t rows = 0;
  std::vector<double> shift, sum, squares, min, max;  // [dim]

  // `values` is [rows, dim].
  void add(const double* values, size_t dim, size_t row_count = 1);
  // The same for the rows of both.
  void merge(const Moments& other);
  double mean(size_t i) const;
  double deviation(size_t i) const;  // of the population, as NumPy's std
};

// Appends the numbers of a row, whatever lists they are in; a null is NaN.
void append_numbers(const formats::ColumnValues& values, int64_t row, std::vector<double>& out);

// The numbers of all rows as [rows, dim]: a view of `values` where they lie so, else copied to `storage`. Empty where a
// row has another number of them than `dim`.
std::span<const double> numbers_of_rows(const formats::ColumnValues& values, size_t dim, std::vector<double>& storage);

}  // namespace millrace::lerobot
