// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/hash/crc32c.h"

#include <array>
#include <cstring>

#include "millrace/base/simd.h"

#if defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace millrace {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

// One byte at a time, from a table: the oracle, and what runs where the processor has no instruction.
constexpr std::array<uint32_t, 256> kByteTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}();

uint32_t extend_by_table(uint32_t state, const std::byte* data, size_t size) {
  for (size_t i = 0; i < size; ++i) state = (state >> 8) ^ kByteTable[(state ^ static_cast<uint32_t>(data[i])) & 0xFF];
  return state;
}

#if defined(__x86_64__)

// The instruction takes three cycles and starts one each cycle: three stretches of this length run beside each other.
constexpr size_t kLane = 4096;

// The state after kLane more zero bytes. It is linear in the state, hence one table for each byte of the state.
struct Shift {
  std::array<std::array<uint32_t, 256>, 4> table{};

  Shift() {
    std::array<uint32_t, 32> of_bit{};
    for (size_t bit = 0; bit < 32; ++bit) {
      uint32_t state = uint32_t{1} << bit;
      for (size_t i = 0; i < kLane; ++i) state = (state >> 8) ^ kByteTable[state & 0xFF];
      of_bit[bit] = state;
    }
    for (size_t byte = 0; byte < 4; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        for (size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) table[byte][value] ^= of_bit[8 * byte + bit];
        }
      }
    }
  }

  uint32_t operator()(uint32_t state) const {
    return table[0][state & 0xFF] ^ table[1][state >> 8 & 0xFF] ^ table[2][state >> 16 & 0xFF] ^ table[3][state >> 24];
  }
};

uint64_t load_word(const std::byte* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

[[gnu::target(MILLRACE_TARGET_SSE42)]] uint32_t extend(uint32_t state, const std::byte* data, size_t size) {
  static const Shift shift;
  for (; size >= 3 * kLane; data += 3 * kLane, size -= 3 * kLane) {
    uint64_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, load_word(data + i));
      b = _mm_crc32_u64(b, load_word(data + kLane + i));
      c = _mm_crc32_u64(c, load_word(data + 2 * kLane + i));
    }
    state = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
  }
  uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load_word(data));
  state = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, static_cast<uint8_t>(*data));
  return state;
}

bool has_instruction() {
  return has_simd(SimdLevel::kSse42);
}

#elif defined(__ARM_FEATURE_CRC32)

uint32_t extend(uint32_t state, const std::byte* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    state = __crc32cd(state, word);
  }
  for (; size > 0; ++data, --size) state = __crc32cb(state, static_cast<uint8_t>(*data));
  return state;
}
bool has_instruction() {
  return true;
}

#else

uint32_t extend(uint32_t state, const std::byte* data, size_t size) {
  return extend_by_table(state, data, size);
}
bool has_instruction() {
  return false;
}

#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  return ~(has_instruction() ? extend(~crc, bytes.data(), bytes.size())
                             : extend_by_table(~crc, bytes.data(), bytes.size()));
}

}  // namespace millrace
