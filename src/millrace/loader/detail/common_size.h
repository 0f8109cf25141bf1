// SPDX-License-Identifier: Apache-2.0
#pragma once

// A few sizes of buffers that stand for all.

#include <algorithm>
#include <bit>
#include <cstddef>

#include "millrace/base/memory/buffer_pool.h"

namespace millrace::loader {

// A buffer of `size_bytes` or up to an eighth more; empty where it would wait, and the errors of
// BufferPool::try_acquire. Buffers of a few sizes are used again, where one of exactly its own size would be new
// memory, which the system has to clear.
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
