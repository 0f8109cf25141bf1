// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "millrace/base/testing.h"
#include "millrace/order/order.h"

namespace millrace::order {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> all_of(const Permutation& permutation) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < permutation.size(); ++i) numbers.push_back(permutation.at(i));
  return numbers;
}

// What tests/python/order_reference.py computes.
TEST(Permutation, IsTheReferences) {
  EXPECT_THAT(all_of(Permutation(14, 7, 0)), ElementsAre(7, 9, 1, 12, 3, 5, 13, 10, 11, 8, 2, 6, 0, 4));
  const Permutation large(100'000'000, 7, 0);
  EXPECT_EQ(large.at(0), 12'622'676);
  EXPECT_EQ(large.at(1), 660'087);
  EXPECT_EQ(large.at(2), 51'636'757);
}

TEST(Permutation, HasEachNumberOnce) {
  const uint64_t seed = test_seed();
  std::vector<int64_t> sizes = {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 4095, 65'537};
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20; ++i) sizes.push_back(static_cast<int64_t>(1 + random() % 5000));
  for (const int64_t size : sizes) {
    std::vector<int64_t> numbers = all_of(Permutation(size, random(), random()));
    std::ranges::sort(numbers);
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], i) << size << ", seed " << seed;
  }
}

TEST(Permutation, AnotherSeedOrEpochIsAnother) {
  const std::vector<int64_t> one = all_of(Permutation(1000, 3, 0));
  for (const auto& other : {Permutation(1000, 3, 1), Permutation(1000, 4, 0), Permutation(1000, 0, 3)}) {
    const std::vector<int64_t> numbers = all_of(other);
    int64_t same = 0;
    for (size_t i = 0; i < numbers.size(); ++i) same += numbers[i] == one[i] ? 1 : 0;
    EXPECT_LT(same, 10);
  }
}

// Six samples, 60,000 seeds: each number as often at each place, each pair as often at the first two. The bounds are
// more than five standard deviations.
TEST(Permutation, EveryNumberIsAsLikelyAtEveryPlace) {
  constexpr int64_t kSize = 6, kSeeds = 60'000;
  int64_t counts[kSize][kSize] = {}, pairs[kSize][kSize] = {};
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<int64_t> numbers = all_of(Permutation(kSize, seed, 0));
    for (size_t i = 0; i < kSize; ++i) ++counts[i][numbers[i]];
    ++pairs[numbers[0]][numbers[1]];
  }
  for (int64_t a = 0; a < kSize; ++a) {
    for (int64_t b = 0; b < kSize; ++b) {
      EXPECT_NEAR(static_cast<double>(counts[a][b]), kSeeds / 6.0, 500);
      if (a == b) continue;
      EXPECT_NEAR(static_cast<double>(pairs[a][b]), kSeeds / 30.0, 250);
    }
  }
}

// A random order has neighbours a third of the whole apart.
TEST(Permutation, NeighboursComeFromAnywhere) {
  constexpr int64_t kSize = 1'000'003, kSteps = 20'000;
  const Permutation permutation(kSize, 5, 9);
  double apart = 0;
  for (int64_t i = 0; i < kSteps; ++i)
    apart += static_cast<double>(std::abs(permutation.at(i + 1) - permutation.at(i)));
  EXPECT_NEAR(apart / kSteps / kSize, 1.0 / 3, 0.02);
}

const OrderOptions kFull = resolve_options({.seed = 7, .full = true}, 14, 0);

EpochOrder full_order(const std::vector<int64_t>& shards, uint64_t epoch = 0) {
  auto windows = std::make_shared<WindowTable>(*WindowTable::create(shards, 1, false));
  return EpochOrder::create(std::move(windows), kFull, epoch).value();
}

TEST(FullOrder, IsThePermutationOfAllSamples) {
  const EpochOrder order = full_order({5, 3, 0, 6});
  EXPECT_EQ(order.units(), 14);
  EXPECT_EQ(order.lanes(), 1);
  EXPECT_EQ(order.blocks(0), 14);
  const std::vector<int64_t> first = {0, 5, 8, 8};  // numbers of the shards' first samples
  for (int64_t position = 0; position < 14; ++position) {
    const auto place = order.place(position);
    EXPECT_EQ(place, (EpochOrder::Place{.lane = 0, .block = position, .index = 0, .row = position}));
    const auto block = order.block(place.lane, place.block);
    ASSERT_EQ(block.windows.size(), 1U);
    EXPECT_EQ(block.samples, 1);
    EXPECT_EQ(block.units, 1);
    EXPECT_EQ(first[static_cast<size_t>(block.windows[0].shard)] + block.windows[0].first,
              Permutation(14, 7, 0).at(position));
    EXPECT_THAT(order.permutation(place.lane, place.block), ElementsAre(0U));
  }
}

TEST(FullOrder, RanksShareEachStep) {
  const EpochOrder order = full_order({50, 31});
  for (const int64_t world : {1, 2, 3, 7, 64}) {
    std::vector<int64_t> together;
    for (int64_t rank = 0; rank < world; ++rank) {
      const auto mine = rank_positions(order, 20, 30, rank, world);
      EXPECT_LE(std::ssize(mine), 30 / world + 1);
      together.insert(together.end(), mine.begin(), mine.end());
    }
    ASSERT_EQ(together.size(), 30U);
    for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(together[static_cast<size_t>(i)], 20 + i);
  }
}

TEST(FullOrder, ReplacementsAreTheUnitsThatFollow) {
  const EpochOrder order = full_order({4});
  const auto damaged = order.place(2);
  for (const auto& [attempt, position] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 0}, {2, 1}}) {
    EXPECT_EQ(order.replacement(damaged, attempt), order.place(position));
  }
  EXPECT_FALSE(order.replacement(damaged, 3));
  EXPECT_TRUE(full_order({1000}).replacement(damaged, 127));
  EXPECT_FALSE(full_order({1000}).replacement(damaged, 128));
}

// Nothing in it grows with the samples.
TEST(FullOrder, BillionsOfSamplesAreNoMore) {
  const EpochOrder order = full_order({int64_t{1} << 31, (int64_t{1} << 31) - 2});
  EXPECT_EQ(order.units(), (int64_t{1} << 32) - 2);
  const auto block = order.block(0, order.units() - 1);
  EXPECT_LT(block.windows[0].shard, 2);
}

TEST(FullOrder, RefusesWhatItCannotBe) {
  const auto windows = std::make_shared<WindowTable>(*WindowTable::create(std::vector<int64_t>{9}, 1, false));
  for (const OrderOptions& wrong :
       {OrderOptions{.shuffle = false, .lanes = 1, .window_samples = 1, .block_windows = 1, .full = true},
        OrderOptions{.lanes = 2, .window_samples = 1, .block_windows = 1, .full = true},
        OrderOptions{.lanes = 1, .window_samples = 1, .block_windows = 2, .full = true}}) {
    EXPECT_THAT(EpochOrder::create(windows, wrong, 0).error().to_string(), HasSubstr("full permutation"));
  }
}

TEST(FullOrder, IsPartOfAState) {
  const OrderState state{.epoch = 1, .position = 5, .options = kFull, .source = "5f2b"};
  const std::string text = serialize_state(state);
  EXPECT_THAT(text, HasSubstr(R"("permutation":"full")"));
  EXPECT_EQ(parse_state(text).value(), state);
}

}  // namespace
}  // namespace millrace::order
