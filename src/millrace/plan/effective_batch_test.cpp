// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/effective_batch.h"

#include <gmock/gmock.h>

#include <random>

#include "millrace/base/testing.h"

namespace millrace::plan {
namespace {

using testing::HasSubstr;

EffectiveBatchPlan plan_of(const EffectiveBatchOptions& options) {
  auto plan = plan_effective_batch(options);
  EXPECT_TRUE(plan) << plan.error().to_string();
  return *std::move(plan);
}

TEST(PlanEffectiveBatch, TheGuidesStrategies) {
  // 4 GPUs x 10 x 3 and 6 GPUs x 12 x 2 reach its range of 120 to 144.
  const auto four = plan_of({.low = 120, .high = 144, .target = 120, .gpus = {4}, .micro_low = 8, .micro_high = 12});
  EXPECT_EQ(four.exact[0].micro, 10);
  EXPECT_EQ(four.exact[0].accumulation, 3);
  // 6 GPUs at 14 have none: 84, 168.
  const auto none = plan_of({.low = 120, .high = 144, .gpus = {6}, .micro_low = 14, .micro_high = 14});
  EXPECT_TRUE(none.exact.empty());
  EXPECT_EQ(none.below->effective, 84);
  EXPECT_EQ(none.above->effective, 168);
  EXPECT_THAT(none.why.notes.back(), HasSubstr("learning rate"));
  // Nor have 88 GPUs with any batch.
  const auto many = plan_of({.low = 120, .high = 144, .gpus = {88}, .micro_low = 1, .micro_high = 64});
  EXPECT_EQ(many.below->effective, 88);
  EXPECT_EQ(many.above->effective, 176);
}

TEST(PlanEffectiveBatch, ModelParallelGpusCountOnce) {
  const auto plan = plan_of({.low = 64,
                             .high = 64,
                             .gpus = {16, 24, 32},
                             .micro_low = 1,
                             .micro_high = 64,
                             .tensor_parallel = 8,
                             .pipeline_parallel = 2});
  for (const EffectiveBatch& way : plan.exact) EXPECT_EQ(way.data_parallel, way.gpus / 16);
  EXPECT_THAT(plan.why.notes.front(), HasSubstr("24 GPUs are not a multiple of 16"));
  EXPECT_FALSE(plan_effective_batch({.low = 1, .high = 9, .gpus = {6}, .tensor_parallel = 4}));
  EXPECT_FALSE(plan_effective_batch({.low = 0, .high = 9, .gpus = {6}}));
  EXPECT_FALSE(plan_effective_batch({.low = 9, .high = 8, .gpus = {6}}));
  EXPECT_FALSE(plan_effective_batch({.low = 1, .high = 8, .gpus = {}}));
  EXPECT_FALSE(plan_effective_batch({.low = 1, .high = 8, .gpus = {1}, .micro_high = 1'000'000'000}));
}

TEST(PlanEffectiveBatch, LargeNumbersAreRefusedNotWrapped) {
  EXPECT_TRUE(plan_effective_batch(
      {.low = 4096, .high = 4096, .gpus = {1024}, .micro_high = 4096, .max_accumulation = 1'000'000}));
  EXPECT_FALSE(plan_effective_batch({.low = 1, .high = 8, .gpus = {int64_t{1} << 53}}));
  EXPECT_FALSE(plan_effective_batch(
      {.low = 1, .high = int64_t{1} << 53, .gpus = {1, 2}, .micro_high = 1000, .max_accumulation = 1'000'000}));
}

TEST(PlanEffectiveBatch, EqualsExhaustiveSearch) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int round = 0; round < 500; ++round) {
    EffectiveBatchOptions options{.low = 1 + below(200),
                                  .micro_low = 1 + below(6),
                                  .max_accumulation = 1 + below(12),
                                  .tensor_parallel = 1 + below(2)};
    options.high = options.low + below(40);
    if (round % 2 == 0) options.target = options.low + below(options.high - options.low + 1);
    options.micro_high = options.micro_low + below(8);
    for (int64_t i = 1 + below(3); i > 0; --i) options.gpus.push_back(options.tensor_parallel * (1 + below(12)));
    const EffectiveBatchPlan plan = plan_of(options);
    size_t inside = 0;
    int64_t largest_below = 0, smallest_above = 1 << 30, least_off = 1 << 30;
    for (const int64_t gpus : options.gpus) {
      for (int64_t micro = options.micro_low; micro <= options.micro_high; ++micro) {
        for (int64_t steps = 1; steps <= options.max_accumulation; ++steps) {
          const int64_t effective = micro * steps * gpus / options.tensor_parallel;
          if (effective < options.low) largest_below = std::max(largest_below, effective);
          if (effective > options.high) smallest_above = std::min(smallest_above, effective);
          if (effective < options.low || effective > options.high) continue;
          ++inside;
          least_off = std::min(least_off, std::abs(effective - options.target.value_or(effective)));
        }
      }
    }
    ASSERT_EQ(plan.exact.size(), inside);
    if (inside == 0) {
      ASSERT_EQ(plan.below ? plan.below->effective : 0, largest_below);
      ASSERT_EQ(plan.above ? plan.above->effective : 1 << 30, smallest_above);
    } else if (options.target) {
      ASSERT_EQ(std::abs(plan.exact[0].effective - *options.target), least_off);
    }
    for (const EffectiveBatch& way : plan.exact)
      ASSERT_EQ(way.effective, way.micro * way.data_parallel * way.accumulation);
  }
}

}  // namespace
}  // namespace millrace::plan
