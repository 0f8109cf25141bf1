// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes MD5 (RFC 1321) of several buffers together. Each step of an MD5 depends on the step before, so a processor
// hashes one buffer at 0.6 GB/s. Here each buffer has a lane of a vector register, and one instruction works on all
// lanes. Functions are thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

using Md5Digest = std::array<std::byte, 16>;

// With fewer buffers than this, computing one after another is faster.
inline constexpr size_t kFewestMd5Lanes = 3;

// Sets digests[i] to the MD5 of buffers[i]. A lane whose buffer has ended takes the next one, so 16 buffers of equal
// length are best. Returns false and does nothing on a processor that can run none of the forms. REQUIRES: both spans
// have the same size.
[[nodiscard]] bool md5_in_lanes(std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests);

namespace detail {

inline constexpr size_t kMd5Lanes = 16;
using Md5State = std::array<std::array<uint32_t, kMd5Lanes>, 4>;  // the words A to D of each lane
// Hashes 64 * `blocks` bytes at each of the kMd5Lanes pointers. `is_half`: only the lower half of the lanes has work.
using Md5Blocks = void (*)(const std::byte* const* lanes, size_t blocks, bool is_half, Md5State& state);

// Returns the forms that this processor can run, the fastest first.
std::span<const Md5Blocks> md5_forms();
void md5_in_lanes(Md5Blocks form, std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests);

}  // namespace detail
}  // namespace millrace
