// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace millrace::loader {

// Returns the bytes of heap memory that a string takes; 0 for a short string, which is stored inline.
inline int64_t heap_bytes(const std::string& text) {
  constexpr int64_t kOfAllocator = 16;
  const bool is_inside = text.capacity() <= std::string().capacity();
  return is_inside ? 0 : static_cast<int64_t>(text.capacity()) + kOfAllocator;
}

}  // namespace millrace::loader
