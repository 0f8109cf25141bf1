// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/checkpoints.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::plan {
namespace {

using testing::HasSubstr;

TEST(PlanCheckpoints, TheClustersSevenModels) {
  const auto plan = plan_checkpoints(
      {.parameters = 70e9, .models = 7, .quota_bytes = 7.7e12, .keep_last = 1, .bandwidth_bytes_per_s = 7.031e9});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->bytes, 980e9);
  EXPECT_EQ(plan->fit, 1);  // 6.9 of 7.7 TB with one copy of each
  EXPECT_EQ(plan->keep_last_safe, 0);
  EXPECT_NEAR(*plan->write_s, 139.4, 0.1);
  EXPECT_NEAR(*plan->write_all_s / 60, 16.3, 0.1);
  EXPECT_THAT(plan->why.notes[0], HasSubstr("keeping 1 needs room for 2, and 1 fit"));
}

TEST(PlanCheckpoints, TheGuidesHomeQuota) {
  EXPECT_EQ(plan_checkpoints({.bytes = 5e9, .quota_bytes = 23.8e9, .used_bytes = 1e9})->fit, 4);
  EXPECT_EQ(plan_checkpoints({.bytes = 8e9, .quota_bytes = 23.8e9, .used_bytes = 1e9})->fit, 2);
  EXPECT_EQ(plan_checkpoints({.bytes = 8e9, .quota_bytes = 1e9, .used_bytes = 2e9})->fit, 0);
  EXPECT_EQ(plan_checkpoints({.bytes = 1e9, .quota_bytes = 10e9, .keep_last = 9})->keep_bytes, 10e9);
}

TEST(PlanCheckpoints, Intervals) {
  const auto plan = plan_checkpoints({.bytes = 1, .stall_s = 60, .gpus = 640});
  EXPECT_NEAR(*plan->mtbf_s / 3600, 79, 0.5);
  EXPECT_NEAR(*plan->young_s / 60, 97, 1);
  EXPECT_LT(*plan->daly_s, *plan->young_s);
  EXPECT_NEAR(*plan_checkpoints({.bytes = 1, .stall_s = 60, .gpus = 88})->mtbf_s / 86400, 24, 0.1);
  EXPECT_EQ(daly_interval_s(100, 50), 50);
  EXPECT_FALSE(plan_checkpoints({.bytes = 1, .gpus = 640})->young_s);
}

// Daly's interval is where the exact model of exponential failures loses the least: M e^(R/M) (e^((t+C)/M) - 1) / t.
TEST(PlanCheckpoints, DalyIsNearTheOptimum) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const double mtbf = std::exp(std::uniform_real_distribution<>(5, 14)(random));
    const double cost = mtbf * std::uniform_real_distribution<>(1e-5, 0.4)(random);
    const auto time_a_second = [&](double interval) { return mtbf * std::expm1((interval + cost) / mtbf) / interval; };
    const double best = daly_interval_s(cost, mtbf);
    for (const double factor : {0.3, 0.5, 0.8, 1.25, 2.0, 3.0}) {
      ASSERT_LT(time_a_second(best), 1.001 * time_a_second(best * factor)) << cost << " " << mtbf << " " << factor;
    }
  }
}

TEST(PlanCheckpoints, WhatIsWrongIsSaid) {
  EXPECT_FALSE(plan_checkpoints({}));
  EXPECT_FALSE(plan_checkpoints({.parameters = 1, .kind = "none"}));
  EXPECT_FALSE(plan_checkpoints({.bytes = -1}));
  EXPECT_FALSE(plan_checkpoints({.bytes = 1, .models = 0}));
}

}  // namespace
}  // namespace millrace::plan
