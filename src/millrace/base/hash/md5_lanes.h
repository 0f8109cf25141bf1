// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes MD5 (RFC 1321) of several buffers together. Each step of one buffer's MD5 waits for the step before, so a
// processor does 0.6 GB/s. Here each buffer has a lane of a vector register, and an instruction works on all lanes.
// Functions are thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

using Md5Digest = std::array<std::byte, 16>;

// With fewer buffers than this, it takes less time to compute one after the other.
inline constexpr size_t kFewestMd5Lanes = 3;

// Sets digests[i] to the MD5 of buffers[i]. A lane whose buffer has ended takes the next one, so 16 buffers of one
// length are best. Returns false, and does nothing, on a processor that none of the forms runs on.
// REQUIRES: both spans have the same size.
[[nodiscard]] bool md5_in_lanes(std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests);

namespace detail {

inline constexpr size_t kMd5Lanes = 16;
using Md5State = std::array<std::array<uint32_t, kMd5Lanes>, 4>;  // the words A to D of each lane
// Hashes 64 * `blocks` bytes at each of the kMd5Lanes pointers. `is_half`: only the lower half of the lanes has work.
using Md5Blocks = void (*)(const std::byte* const* lanes, size_t blocks, bool is_half, Md5State& state);

// The forms that this processor can run, the fastest first.
std::span<const Md5Blocks> md5_forms();
void md5_in_lanes(Md5Blocks form, std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests);

}  // namespace detail
}  // namespace millrace
