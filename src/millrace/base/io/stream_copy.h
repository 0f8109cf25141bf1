// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies data that the thread will not read again soon. Thread-safe on different memory.

#include <cstddef>

namespace millrace {

// Copies like memcpy, with stores that bypass the cache if the processor has them. The destination's cache lines are
// then not read first, which saves a third of the memory traffic of a large copy. Slower than memcpy for data that
// fits the cache. Ranges must not overlap.
void stream_copy(std::byte* to, const std::byte* from, size_t size);

}  // namespace millrace
