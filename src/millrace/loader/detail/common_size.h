// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rounds buffer sizes up to a few common sizes, so that buffers can be reused.

#include <algorithm>
#include <bit>
#include <cstddef>

#include "millrace/base/memory/buffer_pool.h"

namespace millrace::loader {

// Returns a buffer of `size_bytes` or up to an eighth more; empty when it would have to wait. Buffers of a few common
// sizes are reused; a buffer of an exact size would usually be new memory, which the system has to clear. Errors:
// those of BufferPool::try_acquire.
[[nodiscard]] inline Result<Buffer> try_acquire_common(BufferPool& pool, size_t size_bytes) {
  constexpr size_t kPage = 4096;
  const size_t step = std::max(kPage, std::bit_floor(size_bytes) / 8);
  const size_t common = (size_bytes + step - 1) / step * step;
  if (static_cast<int64_t>(common) <= pool.limit_bytes()) {
    auto buffer = pool.try_acquire(common);
    if (!buffer || *buffer) return buffer;
  }
  return pool.try_acquire(size_bytes);
}

}  // namespace millrace::loader
