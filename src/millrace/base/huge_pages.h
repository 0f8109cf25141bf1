// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace millrace {

inline constexpr size_t kHugePage = size_t{2} << 20;  // bytes

// Has the system back the whole huge pages within [data, data + bytes) with such where it has any: a page fault for
// 2 MiB instead of 4 KiB, and look-ups at random places that don't wait for the page table. Only before the first
// touch.
void prefer_huge_pages(void* data, size_t bytes);

// The pages of memory that is filled from the front, asked for a step ahead and many at once, which costs less than a
// page fault for each. What is never reached costs nothing. Large memory comes in huge pages for as long as the system
// has them at hand: where it must first move others together, or a host must give them, small ones are faster. Not
// thread-safe.
class PagesAhead {
 public:
  // Of [data, data + bytes), which nothing has touched yet.
  PagesAhead(void* data, size_t bytes);
  // What lies before data + bytes is filled next.
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
