// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arrays for large tables with random look-ups, in huge pages if the system offers them. With small pages, each
// look-up also waits for the page table. Arrays that are filled once from the front gain as well: one page fault for 2
// MiB takes a fifth of the time of the faults for its 4 KiB pages. Untouched memory is zero and uses no RAM. Not
// thread-safe while it is written.

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace millrace {

enum class Pages { kSmall, kHuge };

struct Unmap {
  size_t bytes = 0;
  void operator()(void* memory) const;
};

// Maps zeroed memory from the system. With kHuge, a size of at least a third of a huge page is rounded up to whole
// huge pages. Throws std::bad_alloc.
std::unique_ptr<void, Unmap> map_memory(size_t bytes, Pages pages);

template <class T>
using HugeArray = std::unique_ptr<T[], Unmap>;

// Makes an array whose bytes are all zero.
template <class T>
HugeArray<T> make_huge_array(size_t count, Pages pages = Pages::kHuge) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  auto memory = map_memory(count * sizeof(T), pages);
  const Unmap unmap = memory.get_deleter();
  return {static_cast<T*>(memory.release()), unmap};
}

// Takes memory from map_memory() if that gives huge pages, otherwise from operator new.
void* allocate_pages(size_t bytes);
void free_pages(void* memory, size_t bytes);

template <class T>
struct HugeAllocator {
  using value_type = T;
  HugeAllocator() = default;
  template <class U>
  explicit(false) HugeAllocator(const HugeAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(allocate_pages(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) { free_pages(memory, count * sizeof(T)); }
  bool operator==(const HugeAllocator&) const { return true; }
};

template <class T>
using HugeVector = std::vector<T, HugeAllocator<T>>;
using HugeString = std::basic_string<char, std::char_traits<char>, HugeAllocator<char>>;

}  // namespace millrace
