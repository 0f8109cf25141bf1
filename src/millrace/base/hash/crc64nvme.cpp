// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/hash/crc64nvme.h"

#include <array>
#include <cstring>

#include "millrace/base/simd.h"

namespace millrace {
namespace crc64 {
namespace {

constexpr uint64_t kPolynomial = 0x9A6C9329AC4BC9B5;  // reflected: bit 63 is the coefficient of x^0

constexpr uint64_t times_x(uint64_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

// Table k: the remainder of each byte followed by k zero bytes.
using Tables = std::array<std::array<uint64_t, 256>, 8>;
constexpr Tables kTables = [] {
  Tables tables{};
  for (uint64_t i = 0; i < 256; ++i) {
    uint64_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = times_x(crc);
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t i = 0; i < 256; ++i) {
      const uint64_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}();

uint64_t load_word(const std::byte* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

uint64_t extend_by_table(uint64_t state, const std::byte* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = state ^ load_word(data);
    state = 0;
    for (size_t byte = 0; byte < 8; ++byte) state ^= kTables[7 - byte][word >> (8 * byte) & 0xFF];
  }
  for (; size > 0; ++data, --size) state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint64_t>(*data)) & 0xFF];
  return state;
}

#if defined(__x86_64__)

constexpr size_t kLanes = 8;  // 16 bytes each; a multiplication takes several cycles, and one can start in every cycle
constexpr size_t kStride = 16 * kLanes;

constexpr uint64_t power_of_x(size_t exponent) {
  uint64_t value = uint64_t{1} << 63;
  for (size_t i = 0; i < exponent; ++i) value = times_x(value);
  return value;
}

// The factors that move 16 bytes ahead by `bits`. The first eight bytes weigh x^64 times the others. The product of two
// reflected words is one bit lower than the reflected product.
struct Fold {
  uint64_t first, second;
};
constexpr Fold fold_over(size_t bits) {
  return {power_of_x(bits + 64 - 1), power_of_x(bits - 1)};
}

[[gnu::target(MILLRACE_TARGET_SSE42)]] __m128i folded(__m128i value, __m128i by) {
  return _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11));
}

[[gnu::target(MILLRACE_TARGET_SSE42)]] uint64_t extend_folding(uint64_t state, const std::byte* data, size_t size) {
  constexpr Fold kFar = fold_over(8 * kStride), kNear = fold_over(8 * 16);
  const __m128i far = _mm_set_epi64x(static_cast<int64_t>(kFar.second), static_cast<int64_t>(kFar.first));
  const __m128i near = _mm_set_epi64x(static_cast<int64_t>(kNear.second), static_cast<int64_t>(kNear.first));
  // SAFETY: an unaligned load of any bytes.
  const auto load = [](const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  __m128i lanes[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = load(data + 16 * lane);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_set_epi64x(0, static_cast<int64_t>(state)));
  for (data += kStride, size -= kStride; size >= kStride; data += kStride, size -= kStride) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = _mm_xor_si128(folded(lanes[lane], far), load(data + 16 * lane));
    }
  }
  __m128i all = lanes[0];
  for (size_t lane = 1; lane < kLanes; ++lane) all = _mm_xor_si128(folded(all, near), lanes[lane]);
  std::byte rest[16];
  std::memcpy(rest, &all, sizeof rest);
  return extend_by_table(extend_by_table(0, rest, sizeof rest), data, size);
}

uint64_t extend(uint64_t state, const std::byte* data, size_t size) {
  return has_simd(SimdLevel::kSse42) && size >= kStride ? extend_folding(state, data, size)
                                                        : extend_by_table(state, data, size);
}

#else

uint64_t extend(uint64_t state, const std::byte* data, size_t size) {
  return extend_by_table(state, data, size);
}

#endif

}  // namespace
}  // namespace crc64

uint64_t crc64nvme(std::span<const std::byte> bytes, uint64_t crc) {
  return ~crc64::extend(~crc, bytes.data(), bytes.size());
}

}  // namespace millrace
