// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the numbers of Parquet columns, row by row or many rows at once, and computes their moments. For one thread.

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/formats/columns.h"

namespace millrace::lerobot {

// Exact moments and bounds of each dimension of a feature. Sums differences from the first value, because sums of
// squares would lose digits by cancellation.
struct Moments {
  int64_t rows = 0;
  std::vector<double> shift, sum, squares, min, max;  // [dim]

  // Adds rows. `values` is [rows, dim].
  void add(const double* values, size_t dim, size_t row_count = 1);
  // Adds the rows of `other`.
  void merge(const Moments& other);
  double mean(size_t i) const;
  double deviation(size_t i) const;  // population standard deviation, as NumPy's std
};

// Appends the numbers of a row, from nested lists of any depth. A null becomes NaN.
void append_numbers(const formats::ColumnValues& values, int64_t row, std::vector<double>& out);

// Returns the numbers of all rows as [rows, dim]: a view of `values` if they have that layout, else a copy in
// `storage`. Empty if the numbers of a row are not `dim`.
std::span<const double> numbers_of_rows(const formats::ColumnValues& values, size_t dim, std::vector<double>& storage);

}  // namespace millrace::lerobot
