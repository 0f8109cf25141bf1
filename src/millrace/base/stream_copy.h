// SPDX-License-Identifier: Apache-2.0
#pragma once

// A copy for data that the copying thread will not read again soon. Thread-safe on different memory.

#include <cstddef>

namespace millrace {

// memcpy whose stores go past the cache where the processor has such stores: the destination's lines are not read
// first, which is a third of the memory traffic of a large copy. Slower than memcpy for what fits the cache. Ranges
// must not overlap.
void stream_copy(std::byte* to, const std::byte* from, size_t size);

}  // namespace millrace
