// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/hash/md5_lanes.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "millrace/base/simd.h"

namespace millrace {
namespace detail {
namespace {

constexpr size_t kBlock = 64;
constexpr std::array<uint32_t, 4> kMd5Begin = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476};

#if defined(__x86_64__)

// The integer part of 2^32 * |sin(i + 1)|.
constexpr std::array<uint32_t, 64> kMd5Sines = {
    0xD76AA478, 0xE8C7B756, 0x242070DB, 0xC1BDCEEE, 0xF57C0FAF, 0x4787C62A, 0xA8304613, 0xFD469501,
    0x698098D8, 0x8B44F7AF, 0xFFFF5BB1, 0x895CD7BE, 0x6B901122, 0xFD987193, 0xA679438E, 0x49B40821,
    0xF61E2562, 0xC040B340, 0x265E5A51, 0xE9B6C7AA, 0xD62F105D, 0x02441453, 0xD8A1E681, 0xE7D3FBC8,
    0x21E1CDE6, 0xC33707D6, 0xF4D50D87, 0x455A14ED, 0xA9E3E905, 0xFCEFA3F8, 0x676F02D9, 0x8D2A4C8A,
    0xFFFA3942, 0x8771F681, 0x6D9D6122, 0xFDE5380C, 0xA4BEEA44, 0x4BDECFA9, 0xF6BB4B60, 0xBEBFBC70,
    0x289B7EC6, 0xEAA127FA, 0xD4EF3085, 0x04881D05, 0xD9D4D039, 0xE6DB99E5, 0x1FA27CF8, 0xC4AC5665,
    0xF4292244, 0x432AFF97, 0xAB9423A7, 0xFC93A039, 0x655B59C3, 0x8F0CCC92, 0xFFEFF47D, 0x85845DD1,
    0x6FA87E4F, 0xFE2CE6E0, 0xA3014314, 0x4E0811A1, 0xF7537E82, 0xBD3AF235, 0x2AD7D2BB, 0xEB86D391};
constexpr int kMd5Shifts[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX512)
namespace avx512 {
#include "millrace/base/hash/md5_lanes.inc"
}  // namespace avx512
MILLRACE_SIMD_END

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX2)
namespace avx2 {
#include "millrace/base/hash/md5_lanes.inc"
}  // namespace avx2
MILLRACE_SIMD_END

#endif

// What is left of the buffer that a lane has: first its own blocks, then those that the standard adds.
struct Lane {
  size_t buffer = 0;
  const std::byte* at = nullptr;
  size_t blocks = 0;
  size_t end_blocks = 0;  // behind them, in `end`
  std::array<std::byte, 2 * kBlock> end;

  bool is_idle() const { return blocks == 0; }

  void start(size_t index, std::span<const std::byte> bytes, size_t lane, Md5State& state) {
    for (size_t word = 0; word < kMd5Begin.size(); ++word) state[word][lane] = kMd5Begin[word];
    buffer = index;
    const size_t whole = bytes.size() / kBlock, rest = bytes.size() % kBlock;
    end_blocks = rest < kBlock - 8 ? 1 : 2;
    end.fill(std::byte{0});
    std::copy_n(bytes.end() - static_cast<ptrdiff_t>(rest), rest, end.begin());
    end[rest] = std::byte{0x80};
    const uint64_t bits = 8 * static_cast<uint64_t>(bytes.size());
    for (size_t i = 0; i < 8; ++i) end[end_blocks * kBlock - 8 + i] = static_cast<std::byte>(bits >> 8 * i);
    at = bytes.data();
    blocks = whole;
    if (blocks == 0) go_to_end();
  }
  void go_to_end() {
    at = end.data();
    blocks = std::exchange(end_blocks, 0);
  }
};

Md5Digest digest_of(const Md5State& state, size_t lane) {
  Md5Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::byte>(state[i / 4][lane] >> 8 * (i % 4));
  return digest;
}

}  // namespace

std::span<const Md5Blocks> md5_forms() {
  static const std::vector<Md5Blocks> forms = runnable_forms<Md5Blocks>({
#if defined(__x86_64__)
      {SimdLevel::kAvx512, avx512::blocks},
      {SimdLevel::kAvx2, avx2::blocks},
#endif
  });
  return forms;
}

void md5_in_lanes(Md5Blocks form, std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests) {
  Md5State state{};
  std::array<Lane, kMd5Lanes> lanes;
  std::array<const std::byte*, kMd5Lanes> from{};
  for (size_t next = 0;;) {
    const Lane* busy = nullptr;
    size_t blocks = SIZE_MAX;
    bool is_half = true;
    for (size_t i = 0; i < kMd5Lanes; ++i) {
      if (lanes[i].is_idle() && next < buffers.size()) {
        lanes[i].start(next, buffers[next], i, state);
        ++next;
      }
      if (lanes[i].is_idle()) continue;
      busy = &lanes[i];
      blocks = std::min(blocks, lanes[i].blocks);
      is_half = i < kMd5Lanes / 2;
    }
    if (busy == nullptr) return;
    for (size_t i = 0; i < kMd5Lanes; ++i) from[i] = lanes[i].is_idle() ? busy->at : lanes[i].at;  // idle: anything
    form(from.data(), blocks, is_half, state);
    for (size_t i = 0; i < kMd5Lanes; ++i) {
      Lane& lane = lanes[i];
      if (lane.is_idle()) continue;
      lane.at += blocks * kBlock;
      lane.blocks -= blocks;
      if (!lane.is_idle()) continue;
      if (lane.end_blocks > 0)
        lane.go_to_end();
      else
        digests[lane.buffer] = digest_of(state, i);
    }
  }
}

}  // namespace detail

bool md5_in_lanes(std::span<const std::span<const std::byte>> buffers, std::span<Md5Digest> digests) {
  const auto forms = detail::md5_forms();
  if (forms.empty()) return false;
  detail::md5_in_lanes(forms.front(), buffers, digests);
  return true;
}

}  // namespace millrace
