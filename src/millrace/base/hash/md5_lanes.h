// SPDX-License-Identifier: Apache-2.0
#pragma once

// MD5 (RFC 1321) of several buffers beside each other. The MD5 of one buffer is a chain of steps that each wait for the
// one before: 0.6 GB/s on any processor. Here each buffer has a lane of a vector register, and the steps of all lanes
// are the same instructions. Functions are thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

using Md5Digest = std::array<std::byte, 16>;

// With fewer buffers than that a usual MD5, one after the other, takes less time.
inline constexpr size_t kFewestMd5Lanes = 3;

// digests[i] becomes the MD5 of buffers[i]. A lane whose buffer has ended takes the next one, so 16 buffers of one
// length are best. False, and nothing is done: this processor has no form of it.
// REQUIRES: both spans have one size.
[[nodiscard]] bool md5_in_lanes(std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests);

namespace detail {

inline constexpr size_t kMd5Lanes = 16;
using Md5State = std::array<std::array<uint32_t, kMd5Lanes>, 4>;  // the words A to D of each lane
// Takes the 64 * `blocks` bytes behind each of kMd5Lanes pointers; of half of them when the upper lanes are idle.
using Md5Blocks = void (*)(const std::byte* const* lanes, size_t blocks, bool is_half, Md5State& state);

// Those that this processor can run, the fastest first.
std::span<const Md5Blocks> md5_forms();
void md5_in_lanes(Md5Blocks form, std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests);

}  // namespace detail
}  // namespace millrace
