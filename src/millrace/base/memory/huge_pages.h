// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace millrace {

inline constexpr size_t kHugePage = size_t{2} << 20;  // bytes

// Asks the kernel to use huge pages for the whole huge pages within [data, data + bytes): one page fault for
// 2 MiB instead of 4 KiB, and random look-ups that don't wait for the page table. Call before the first
// touch.
void prefer_huge_pages(void* data, size_t bytes);

// Maps the pages of memory that is filled from the front, many at once and a step ahead, which costs less than a
// page fault for each. Pages that are never reached are not mapped. Large memory gets huge pages as long as the system
// has free ones: where it must first compact memory, or ask the host for it, small ones are faster. Not
// thread-safe.
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
  size_t ready_;  // bytes from data_ on that were asked for
  bool huge_;
};

}  // namespace millrace
