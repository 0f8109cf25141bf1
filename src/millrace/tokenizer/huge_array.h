// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arrays for large tables that are looked up at random places: in huge pages where the system has them, since each
// look-up in small pages waits for the page table too. Memory that nothing has touched is zero and costs nothing. Not
// thread-safe while it is written.

#include <cstddef>
#include <memory>
#include <type_traits>

namespace millrace::tokenizer {

enum class Pages { kSmall, kHuge };

// Zeroed memory from the system. Throws std::bad_alloc.
void* map_memory(size_t bytes, Pages pages);

struct Unmap {
  size_t bytes = 0;
  void operator()(void* memory) const;
};

template <class T>
using HugeArray = std::unique_ptr<T[], Unmap>;

// All of its bytes are zero.
template <class T>
HugeArray<T> make_huge_array(size_t count, Pages pages = Pages::kHuge) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  return {static_cast<T*>(map_memory(count * sizeof(T), pages)), Unmap{count * sizeof(T)}};
}

}  // namespace millrace::tokenizer
