// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace millrace {

#if defined(__SSE2__)

void stream_copy(std::byte* to, const std::byte* from, size_t size) {
  constexpr size_t kLine = 64;
  const size_t head = std::min(size, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= size; at += kLine) {
    // SAFETY: unaligned loads and aligned stores of bytes inside the two ranges; `to + at` is a multiple of 64.
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, size - at);
  _mm_sfence();  // other threads see the stores once they see that this returned
}

#else

void stream_copy(std::byte* to, const std::byte* from, size_t size) {
  std::memcpy(to, from, size);
}

#endif

}  // namespace millrace
