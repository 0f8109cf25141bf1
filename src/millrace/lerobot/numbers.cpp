// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::lerobot {
namespace {

using formats::ColumnKind;
using formats::ColumnValues;

// Whether a list column holds `dim` doubles in each row, one row behind the other, and no null.
bool is_plain_list(const ColumnValues& values, size_t dim) {
  if (values.kind != ColumnKind::kList || values.fields[0].kind != ColumnKind::kFloat) return false;
  if (!values.fields[0].nulls.empty() || values.fields[0].reals.size() != static_cast<size_t>(values.rows) * dim) {
    return false;
  }
  for (size_t row = 0; row < values.offsets.size(); ++row) {
    if (values.offsets[row] != static_cast<int64_t>(row * dim)) return false;
  }
  return true;
}

}  // namespace

void Moments::add(const double* values, size_t dim, size_t row_count) {
  if (row_count == 0) return;
  if (rows == 0) {
    shift.assign(values, values + dim);
    sum.assign(dim, 0);
    squares.assign(dim, 0);
    min.assign(values, values + dim);
    max = min;
  }
  rows += static_cast<int64_t>(row_count);
  double *const sums = sum.data(), *const products = squares.data(), *const low = min.data(), *const high = max.data();
  const double* const from = shift.data();
  for (size_t row = 0; row < row_count; ++row, values += dim) {
    for (size_t i = 0; i < dim; ++i) {
      const double value = values[i], difference = value - from[i];
      sums[i] += difference;
      products[i] += difference * difference;
      low[i] = std::min(low[i], value);
      high[i] = std::max(high[i], value);
    }
  }
}

void Moments::merge(const Moments& other) {
  if (other.rows == 0) return;
  if (rows == 0) {
    *this = other;
    return;
  }
  const auto n = static_cast<double>(other.rows);
  for (size_t i = 0; i < shift.size() && i < other.shift.size(); ++i) {
    const double moved = other.shift[i] - shift[i];
    squares[i] += other.squares[i] + 2 * moved * other.sum[i] + n * moved * moved;
    sum[i] += other.sum[i] + n * moved;
    min[i] = std::min(min[i], other.min[i]);
    max[i] = std::max(max[i], other.max[i]);
  }
  rows += other.rows;
}

double Moments::mean(size_t i) const {
  return shift[i] + sum[i] / static_cast<double>(rows);
}

double Moments::deviation(size_t i) const {
  const auto n = static_cast<double>(rows);
  return std::sqrt(std::max(0.0, squares[i] / n - (sum[i] / n) * (sum[i] / n)));
}

void append_numbers(const ColumnValues& values, int64_t row, std::vector<double>& out) {
  if (values.kind == ColumnKind::kText || values.kind == ColumnKind::kStruct || values.kind == ColumnKind::kOther)
    return;
  if (values.kind != ColumnKind::kList) {
    out.push_back(values.is_null(row) ? std::numeric_limits<double>::quiet_NaN() : values.number(row));
    return;
  }
  const int64_t begin = values.offsets[static_cast<size_t>(row)], end = values.offsets[static_cast<size_t>(row) + 1];
  for (int64_t i = begin; i < end; ++i) append_numbers(values.fields[0], i, out);
}

std::span<const double> numbers_of_rows(const ColumnValues& values, size_t dim, std::vector<double>& storage) {
  if (values.nulls.empty() && dim == 1 && values.kind == ColumnKind::kFloat) return values.reals;
  if (values.nulls.empty() && is_plain_list(values, dim)) return values.fields[0].reals;
  storage.clear();
  if (values.nulls.empty() && dim == 1 && (values.kind == ColumnKind::kInteger || values.kind == ColumnKind::kBool)) {
    storage.assign(values.integers.begin(), values.integers.end());
    return storage;
  }
  for (int64_t row = 0; row < values.rows; ++row) {
    const size_t before = storage.size();
    append_numbers(values, row, storage);
    if (storage.size() != before + dim) return {};
  }
  return storage;
}

}  // namespace millrace::lerobot
