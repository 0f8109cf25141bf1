// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/ranges.h"

#include "millrace/checkpoint/records/boxes.h"

namespace millrace::checkpoint {

namespace {

// `around`: the box of the elements that share the indices of the dimensions before `dimension`, as far as is known.
void add_range(std::span<const int64_t> shape, size_t dimension, const Box& around, int64_t begin, int64_t end,
               std::vector<Box>& boxes) {
  if (begin == end) return;
  if (dimension == shape.size()) {  // one element
    boxes.push_back(around);
    return;
  }
  const int64_t inner = volume(shape.subspan(dimension + 1));
  const auto rows = [&](int64_t first, int64_t count) {
    Box box = around;
    box.offset[dimension] = first;
    box.shape[dimension] = count;
    return box;
  };
  const auto part_of_row = [&](int64_t row, int64_t from, int64_t to) {
    add_range(shape, dimension + 1, rows(row, 1), from - row * inner, to - row * inner, boxes);
  };
  int64_t first = begin / inner;
  const int64_t last = end / inner;
  if (first == last) return part_of_row(first, begin, end);
  if (begin % inner != 0) {
    part_of_row(first, begin, (first + 1) * inner);
    ++first;
  }
  if (first < last) boxes.push_back(rows(first, last - first));
  if (end % inner != 0) part_of_row(last, last * inner, end);
}

}  // namespace

std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  add_range(shape, 0, whole_box(shape), begin, end, boxes);
  return boxes;
}

}  // namespace millrace::checkpoint
