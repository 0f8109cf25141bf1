// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses a cell to the same number as Python's float(), to the last bit. Thread-safe.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "millrace/base/text/ascii.h"

namespace millrace::formats::detail {

enum class NumberStatus {
  kOk,
  kNotANumber,  // float() raises ValueError
  kTooLarge,    // digits above the largest double, for which float() returns inf
};

// Computes float(cell), or float(cell.replace(',', '.')) for a cell without '.' when `point` is ','. float() also
// accepts digits of other scripts and spaces outside ASCII; here they are not a number.
NumberStatus parse_number(std::string_view cell, char point, double& value);

// Returns the eight characters at `text` as a number, or a value above 99,999,999 when one of them is not a digit.
inline uint64_t eight_digits(const char* text) {
  uint64_t word;
  std::memcpy(&word, text, sizeof word);
  word -= 0x3030303030303030;  // a digit is 0 to 9 now
  if (((word | (word + 0x7676767676767676)) & 0x8080808080808080) != 0) return ~uint64_t{0};
  word = word * 10 + (word >> 8);  // pairs of digits, then fours, then all
  return (((word & 0x000000FF000000FF) * 0x000F424000000064) +
          (((word >> 16) & 0x000000FF000000FF) * 0x0000271000000001)) >>
         32;
}

// 10^0 to 10^22, the powers that a double holds exactly.
inline constexpr double kExactPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                          1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
inline constexpr int kMostExactPower = 22;

// A number of digits with an optional sign, point and exponent: value = digits * 10^-scale.
struct PlainNumber {
  uint64_t digits = 0;
  int scale = 0;
  bool negative = false;
};

// Splits a plain number. Returns false for cells that only parse_number() handles: more than 19 digits, spaces, words,
// text.
[[gnu::always_inline]] inline bool split_plain(const char* at, const char* end, char point, PlainNumber& number) {
  number.negative = at != end && *at == '-';
  at += number.negative ? 1 : 0;
  const char* const first = at;
  uint64_t digits = 0;
  for (; at != end && is_digit(*at); ++at) digits = digits * 10 + static_cast<uint64_t>(*at - '0');
  auto count = at - first;
  number.scale = 0;
  if (at != end && *at == point) {
    const char* const fraction = ++at;
    for (uint64_t eight = 0; end - at >= 8 && (eight = eight_digits(at)) <= 99'999'999; at += 8) {
      digits = digits * 100'000'000 + eight;
    }
    for (; at != end && is_digit(*at); ++at) digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    number.scale = static_cast<int>(at - fraction);
    count += at - fraction;
  }
  number.digits = digits;
  if (count == 0 || count > 19) return false;
  if (at == end) return true;
  if ((*at | 0x20) != 'e') return false;
  ++at;
  const bool down = at != end && *at == '-';
  if (at != end && (*at == '-' || *at == '+')) ++at;
  if (at == end || end - at > 3) return false;
  int exponent = 0;
  for (; at != end && is_digit(*at); ++at) exponent = exponent * 10 + (*at - '0');
  number.scale += down ? exponent : -exponent;
  return at == end;
}

#if defined(__x86_64__)
// The x87 unit divides 64-bit integers by powers of ten up to 10^27 in 64 bits of precision, correctly rounded.
// Rounding that to a double's 53 bits gives the nearest double, unless the first result lies in the middle between two.
inline bool divide_wide(uint64_t digits, int scale, double& value) {
  static constexpr long double kPowers[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                            1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                            1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
  if (scale < 0 || scale > 27) return false;
  const long double quotient = static_cast<long double>(digits) / kPowers[scale];
  uint64_t mantissa;
  std::memcpy(&mantissa, &quotient, sizeof mantissa);
  value = static_cast<double>(quotient);
  return (mantissa & 0x7FF) != 0x400;
}
#else
inline bool divide_wide(uint64_t, int, double&) {
  return false;
}
#endif

// Computes digits * 10^-scale with the sign. Returns false when only parse_number() can round it correctly.
inline bool round_plain(const PlainNumber& number, double& value) {
  const int scale = number.scale;
  if (number.digits <= uint64_t{1} << 53 && scale >= -kMostExactPower && scale <= kMostExactPower) [[likely]] {
    // Both are exact, so the one operation rounds correctly.
    const auto exact = static_cast<double>(number.digits);
    value = scale >= 0 ? exact / kExactPowers[scale] : exact * kExactPowers[-scale];
  } else if (!divide_wide(number.digits, scale, value)) {
    return false;
  }
  // Half of all numbers are negative: no branch for that.
  value = std::bit_cast<double>(std::bit_cast<uint64_t>(value) ^ uint64_t{number.negative} << 63);
  return true;
}

// Does the same as parse_number(), with an inline fast path for the numbers that CSV writers usually write.
inline NumberStatus parse_cell(std::string_view cell, char point, double& value) {
  PlainNumber number;
  const bool plain = split_plain(cell.data(), cell.data() + cell.size(), point, number) && round_plain(number, value);
  return plain ? NumberStatus::kOk : parse_number(cell, point, value);
}

}  // namespace millrace::formats::detail
