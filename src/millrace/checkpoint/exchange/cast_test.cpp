// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/exchange/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "millrace/base/testing/helpers.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;

template <class To, class From>
To cast_one(From value, Dtype from, Dtype to) {
  To result;
  cast(reinterpret_cast<const std::byte*>(&value), from, reinterpret_cast<std::byte*>(&result), to, 1);
  return result;
}

// The value of half precision or bfloat16 bits, by its definition.
double value_of(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1), fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

// Each of the 65,536 numbers comes back through float.
TEST(Cast, EveryNarrowNumberIsItself) {
  for (const auto& [dtype, exponent_bits] : {std::pair{Dtype::kF16, 5}, std::pair{Dtype::kBF16, 8}}) {
    for (int i = 0; i < 65'536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const auto wide = cast_one<float>(bits, dtype, Dtype::kF32);
      const double value = value_of(bits, exponent_bits);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(wide)) << i;
        ASSERT_TRUE(std::isnan(value_of(cast_one<uint16_t>(wide, Dtype::kF32, dtype), exponent_bits))) << i;
        continue;
      }
      ASSERT_EQ(wide, value) << i;
      ASSERT_EQ(cast_one<uint16_t>(wide, Dtype::kF32, dtype), bits) << i;
    }
  }
}

// Between two neighbours the nearer one is taken, and in the middle the even one.
TEST(Cast, RoundsToTheNearestEven) {
  for (const auto& [dtype, exponent_bits] : {std::pair{Dtype::kF16, 5}, std::pair{Dtype::kBF16, 8}}) {
    const int last = ((1 << exponent_bits) - 1) << (15 - exponent_bits);  // infinity
    for (int i = 0; i + 1 < last; ++i) {
      const auto low = static_cast<uint16_t>(i), high = static_cast<uint16_t>(i + 1);
      const auto middle = static_cast<float>((value_of(low, exponent_bits) + value_of(high, exponent_bits)) / 2);
      ASSERT_EQ(cast_one<uint16_t>(middle, Dtype::kF32, dtype), i % 2 == 0 ? low : high) << i;
      ASSERT_EQ(cast_one<uint16_t>(std::nextafter(middle, 0.0F), Dtype::kF32, dtype), low) << i;
      ASSERT_EQ(cast_one<uint16_t>(std::nextafter(middle, INFINITY), Dtype::kF32, dtype), high) << i;
      ASSERT_EQ(cast_one<uint16_t>(-middle, Dtype::kF32, dtype), (i % 2 == 0 ? low : high) | 0x8000) << i;
    }
    EXPECT_EQ(cast_one<uint16_t>(INFINITY, Dtype::kF32, dtype), last);
    EXPECT_EQ(cast_one<uint16_t>(3.4e38F, Dtype::kF32, Dtype::kF16), 0x7c00);
  }
  EXPECT_EQ(cast_one<uint16_t>(65'519.0F, Dtype::kF32, Dtype::kF16), 0x7bff);
  EXPECT_EQ(cast_one<uint16_t>(65'520.0F, Dtype::kF32, Dtype::kF16), 0x7c00);
  EXPECT_EQ(cast_one<uint16_t>(3.4028235e38F, Dtype::kF32, Dtype::kBF16), 0x7f80);
}

TEST(Cast, WideNumbersKeepWhatFitsAndArraysNeedNoAlignment) {
  EXPECT_EQ(cast_one<double>(0.1F, Dtype::kF32, Dtype::kF64), static_cast<double>(0.1F));
  EXPECT_EQ(cast_one<float>(0.1, Dtype::kF64, Dtype::kF32), 0.1F);
  EXPECT_EQ(cast_one<double>(0.1, Dtype::kF64, Dtype::kF64), 0.1);
  std::mt19937_64 random(test_seed());
  std::vector<std::byte> source(4 * 1000 + 1), target(2 * 1000 + 1), back(4 * 1000 + 3);
  for (int i = 0; i < 1000; ++i) {
    const auto value = std::ldexp(static_cast<float>(random() % 256), static_cast<int>(random() % 60) - 30);
    std::memcpy(source.data() + 1 + i * 4, &value, 4);
  }
  cast(source.data() + 1, Dtype::kF32, target.data() + 1, Dtype::kBF16, 1000);
  cast(target.data() + 1, Dtype::kBF16, back.data() + 3, Dtype::kF32, 1000);
  EXPECT_EQ(std::memcmp(source.data() + 1, back.data() + 3, 4000), 0) << "8 bits of fraction are exact";
  EXPECT_FALSE(is_castable(Dtype::kI64));
  EXPECT_FALSE(is_castable(Dtype::kF8E4M3));
  EXPECT_TRUE(is_castable(Dtype::kBF16));
}

}  // namespace
}  // namespace millrace::checkpoint
