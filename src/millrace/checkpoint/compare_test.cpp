// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "millrace/checkpoint/testing.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;
using Kind = TensorDifference::Kind;

template <class T>
Array array_of(Dtype dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  Array array{dtype, std::move(shape), std::string(values.size() * sizeof(T), 0)};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

std::map<std::string, TensorDifference> differences_of(const Arrays& a, const Arrays& b, int64_t buffer_bytes) {
  const Location root = memory_root();
  const auto saver = make_saver(root);
  EXPECT_OK(save_and_wait(*saver, 1, a));
  EXPECT_OK(save_and_wait(*saver, 2, b));
  std::map<std::string, TensorDifference> found;
  const auto first = Checkpoint::open(root, 1).value(), second = Checkpoint::open(root, 2).value();
  EXPECT_OK(compare_checkpoints(*first, *second, {.buffer_bytes = buffer_bytes},
                                [&](const TensorDifference& d) { found.emplace(d.name, d); }));
  return found;
}

TEST(Compare, TellsWhatDiffersAndByHowMuch) {
  const Arrays a{{"same", array_of<float>(Dtype::kF32, {2}, {3, 4})},
                 {"moved", array_of<double>(Dtype::kF64, {2, 2}, {0, 0, 3, 4})},
                 {"half", array_of<uint16_t>(Dtype::kF16, {4}, {0x3C00, 0xC000, 0x0001, 0x0000})},  // 1, -2, 2^-24, 0
                 {"brain", array_of<uint16_t>(Dtype::kBF16, {1}, {0x3F80})},                        // 1
                 {"eight", array_of<uint8_t>(Dtype::kF8E4M3, {3}, {1, 2, 3})},
                 {"shape", array_of<float>(Dtype::kF32, {2}, {1, 1})},
                 {"gone", array_of<float>(Dtype::kF32, {}, {1})}};
  const Arrays b{{"same", a.at("same")},
                 {"moved", array_of<double>(Dtype::kF64, {2, 2}, {0, 12, 3, 9})},
                 {"half", array_of<uint16_t>(Dtype::kF16, {4}, {0x3C00, 0xC000, 0x0001, 0x4200})},  // 3
                 {"brain", array_of<uint16_t>(Dtype::kBF16, {1}, {0x4080})},                        // 4
                 {"eight", array_of<uint8_t>(Dtype::kF8E4M3, {3}, {1, 9, 9})},
                 {"shape", array_of<float>(Dtype::kF32, {1, 2}, {1, 1})},
                 {"new", array_of<float>(Dtype::kF32, {}, {1})}};
  auto found = differences_of(a, b, 1 << 20);
  EXPECT_EQ(found.size(), 8U);
  EXPECT_EQ(found["same"].kind, Kind::kEqual);
  EXPECT_DOUBLE_EQ(found["same"].norms->a, 5);
  EXPECT_DOUBLE_EQ(found["same"].norms->difference, 0);
  EXPECT_EQ(found["moved"].kind, Kind::kChanged);
  EXPECT_EQ(found["moved"].changed, 2);
  EXPECT_DOUBLE_EQ(found["moved"].norms->a, 5);
  EXPECT_DOUBLE_EQ(found["moved"].norms->difference, 13);
  EXPECT_DOUBLE_EQ(found["half"].norms->a, std::sqrt(5 + std::ldexp(1.0, -48)));
  EXPECT_DOUBLE_EQ(found["half"].norms->difference, 3);
  EXPECT_DOUBLE_EQ(found["brain"].norms->b, 4);
  EXPECT_EQ(found["eight"].changed, 2);
  EXPECT_FALSE(found["eight"].norms);
  EXPECT_EQ(found["shape"].kind, Kind::kOther);
  EXPECT_EQ(found["gone"].kind, Kind::kOnlyA);
  EXPECT_EQ(found["new"].kind, Kind::kOnlyB);
}

TEST(Compare, GivesTheSameWithLittleMemory) {
  std::vector<float> left(10'000), right(10'000);
  for (size_t i = 0; i < left.size(); ++i) right[i] = (left[i] = static_cast<float>(i % 7)) + (i % 100 == 0 ? 1 : 0);
  const Arrays a{{"w", array_of<float>(Dtype::kF32, {100, 100}, left)}},
      b{{"w", array_of<float>(Dtype::kF32, {100, 100}, right)}};
  auto large = differences_of(a, b, 1 << 20), small = differences_of(a, b, 2 * 4096);
  EXPECT_EQ(small["w"].changed, 100);
  EXPECT_DOUBLE_EQ(small["w"].norms->difference, 10);
  EXPECT_DOUBLE_EQ(small["w"].norms->a, large["w"].norms->a);
}

}  // namespace
}  // namespace millrace::checkpoint
