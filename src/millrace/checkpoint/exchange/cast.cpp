// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/exchange/cast.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace millrace::checkpoint {

namespace {

using formats::Dtype;

// Each format as a type with its conversions from and to float. F64 goes through float, as in torch.
struct F64 {
  double value;
  float get() const { return static_cast<float>(value); }
  static F64 from(float number) { return {number}; }
};
struct F32 {
  float value;
  float get() const { return value; }
  static F32 from(float number) { return {number}; }
};
struct BF16 {
  uint16_t bits;
  float get() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static BF16 from(float number) {
    const auto bits = std::bit_cast<uint32_t>(number);
    if (std::isnan(number)) return {0x7fc0};
    return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  }
};
struct F16 {
  uint16_t bits;
  float get() const {
    const uint32_t sign = uint32_t{bits} >> 15 << 31, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -small : small;
  }
  static F16 from(float number) {
    const auto bits = std::bit_cast<uint32_t>(number);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (size >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to 65536 or more
    if (size >= 0x38800000) {                                               // normal
      const uint32_t rounded = size + 0xfff + ((size >> 13) & 1);
      return {static_cast<uint16_t>(sign | (rounded - (112u << 23)) >> 13)};
    }
    // Below 2^-14: a multiple of 2^-24, which the default rounding of the addition gives.
    const float shifted = std::bit_cast<float>(size) + 0.5F;  // 0.5F has steps of 2^-24
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)))};
  }
};

template <class From, class To>
void convert(const std::byte* source, std::byte* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i, source += sizeof(From), target += sizeof(To)) {
    From from;
    std::memcpy(&from, source, sizeof from);
    To to;
    if constexpr (std::is_same_v<From, To>) {
      to = from;
    } else {
      to = To::from(from.get());
    }
    std::memcpy(target, &to, sizeof to);
  }
}

template <class From>
void convert_to(const std::byte* source, std::byte* target, Dtype to, int64_t count) {
  switch (to) {
    case Dtype::kF64:
      return convert<From, F64>(source, target, count);
    case Dtype::kF32:
      return convert<From, F32>(source, target, count);
    case Dtype::kF16:
      return convert<From, F16>(source, target, count);
    default:
      return convert<From, BF16>(source, target, count);
  }
}

}  // namespace

bool is_castable(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

void cast(const std::byte* source, Dtype from, std::byte* target, Dtype to, int64_t count) {
  switch (from) {
    case Dtype::kF64:
      return convert_to<F64>(source, target, to, count);
    case Dtype::kF32:
      return convert_to<F32>(source, target, to, count);
    case Dtype::kF16:
      return convert_to<F16>(source, target, to, count);
    default:
      return convert_to<BF16>(source, target, to, count);
  }
}

}  // namespace millrace::checkpoint
