// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace millrace {

inline constexpr size_t kHugePage = size_t{2} << 20;  // bytes

// Asks the kernel for huge pages within [data, data + bytes), for every whole huge page in the range. One page fault
// then maps 2 MiB instead of 4 KiB, and random look-ups do not wait for the page table. Call it before the memory is
// touched.
void prefer_huge_pages(void* data, size_t bytes);

// Maps pages of memory that is filled from the front. Maps many pages at once, ahead of the writer, which costs less
// than a page fault for each. Pages that the writer does not reach are not mapped. Large memory gets huge pages while
// the system has free ones. Small pages are faster where the system would have to compact memory or ask its host for
// more. Not thread-safe.
class PagesAhead {
 public:
  // For [data, data + bytes), which must be untouched.
  PagesAhead(void* data, size_t bytes);
  // Call before memory up to data + bytes is filled.
  void reach(size_t bytes) {
    if (bytes > ready_) ask_until(bytes);
  }

 private:
  void ask_until(size_t bytes);
  char* data_;
  size_t size_;
  size_t ready_;  // bytes from data_ on that were already requested
  bool huge_;
};

}  // namespace millrace
