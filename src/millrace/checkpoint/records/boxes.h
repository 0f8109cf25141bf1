// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arithmetic of boxes: checks whether a set of them tiles a tensor, and copies bytes from one box to another. Pure;
// thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

Box whole_box(std::span<const int64_t> shape);
// Returns the product of the dimensions. REQUIRES: it fits into int64_t, as for any shape that formats::tensor_bytes
// accepted.
int64_t volume(std::span<const int64_t> shape);

// Checks that `box` is inside `shape`. Errors: invalid_argument, saying how `box` leaves `shape`.
[[nodiscard]] Status check_inside(const Box& box, std::span<const int64_t> shape);

// Returns the intersection; nullopt when it is empty. REQUIRES: the same number of dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);

// Checks that the boxes cover `shape` exactly once. Sorts along the dimension with the most distinct offsets: n shards
// of one dimension cost n log n, a grid costs n times its smaller side. Errors: corruption when the boxes leave a gap,
// overlap or leave `shape`.
[[nodiscard]] Status check_tiling(std::span<const int64_t> shape, std::span<const Box* const> boxes);

// Copies the elements of the box `common` from the dense bytes of box `from` into the dense bytes of box `to`, in runs
// that are contiguous in both.
class BoxCopy {
 public:
  // REQUIRES: `common` is not empty and is inside `from` and `to`.
  BoxCopy(const Box& common, const Box& from, const Box& to, int64_t element_bytes);

  // Returns whether any byte of [begin, end) of `from` is copied.
  bool touches(int64_t begin, int64_t end) const;
  // Copies the elements that are in `chunk`, the bytes of `from` starting at `begin`. `to` is the whole target.
  void copy(int64_t begin, std::span<const std::byte> chunk, std::byte* to) const;

 private:
  struct Dimension {
    int64_t size = 0, from_stride = 0, to_stride = 0;  // bytes
  };
  int64_t from_offset(int64_t run) const;
  int64_t first_run_behind(int64_t begin) const;

  std::vector<Dimension> outer_;  // dimensions that are not part of a run
  int64_t runs_ = 1;
  int64_t run_bytes_ = 0;
  int64_t from_begin_ = 0, to_begin_ = 0;
};

}  // namespace millrace::checkpoint
