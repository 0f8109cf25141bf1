// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/checkpoint_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace millrace::plan {
namespace {

using testing::HasSubstr;

const StorageChoice& find(const StoragePlan& plan, std::string_view name) {
  const auto at = std::ranges::find_if(plan.choices, [&](const StorageChoice& each) { return each.name == name; });
  EXPECT_NE(at, plan.choices.end());
  return *at;
}

// The cluster guide's file systems: 7200 GiB x 1000 are 7031 MB/s, 4800 x 500 are 2344.
TEST(CheckpointStorage, FsxIsSizedBySpaceOrByThroughput) {
  const auto fast = plan_checkpoint_storage({.bytes = 2e12, .ranks = 640, .nodes = 80, .keep = 2, .write_s = 300});
  ASSERT_TRUE(fast) << fast.error().to_string();
  EXPECT_NEAR(fast->bytes_per_s, 6.667e9, 1e6);
  EXPECT_EQ(fast->space_bytes, 6e12);
  const StorageChoice& thousand = find(*fast, "PERSISTENT_2 1000");
  EXPECT_EQ(thousand.gib, 7200);
  EXPECT_NEAR(thousand.bytes_per_s / 1e6, 7031, 1);
  EXPECT_THAT(thousand.note, HasSubstr("throughput"));
  EXPECT_EQ(thousand.stripe_count, 1) << "640 ranks over 3 servers";
  EXPECT_EQ(find(*fast, "PERSISTENT_2 500").gib, 14'400);
  EXPECT_EQ(find(*fast, "PERSISTENT_2 125").gib, 55'200);
  const auto slow = plan_checkpoint_storage({.bytes = 2e12, .ranks = 8, .nodes = 1, .keep = 2, .write_s = 7200});
  EXPECT_EQ(find(*slow, "PERSISTENT_2 500").gib, 7200);
  EXPECT_THAT(find(*slow, "PERSISTENT_2 500").note, HasSubstr("space"));
  const auto one = plan_checkpoint_storage({.bytes = 2e12, .ranks = 1, .keep = 2, .write_s = 7200});
  EXPECT_EQ(find(*one, "PERSISTENT_2 500").stripe_count, 3) << "one file over all servers";
  EXPECT_EQ(find(*plan_checkpoint_storage({.bytes = 1e9, .write_s = 60}), "SCRATCH_2").gib, 1200);
}

TEST(CheckpointStorage, Gp3FollowsItsRatios) {
  const auto plan = plan_checkpoint_storage({.bytes = 600e9, .ranks = 8, .nodes = 1, .keep = 1, .write_s = 600});
  const StorageChoice& one = find(*plan, "gp3");
  EXPECT_EQ(one.what, "1 a node: 1118 GiB, 4000 IOPS, 1000 MB/s");
  EXPECT_EQ(one.write_s, 600);
  const auto faster = plan_checkpoint_storage({.bytes = 600e9, .ranks = 8, .nodes = 1, .keep = 1, .write_s = 200});
  EXPECT_THAT(find(*faster, "gp3").what, HasSubstr("3 a node"));
  EXPECT_THAT(find(*faster, "gp3").note, HasSubstr("RAID 0"));
  EXPECT_FALSE(find(*plan_checkpoint_storage({.bytes = 20e12, .write_s = 60}), "gp3").carries);
  EXPECT_THAT(find(*plan_checkpoint_storage({.bytes = 1e9, .write_s = 60}), "gp3").what,
              HasSubstr("6 GiB, 3000 IOPS, 125 MB/s"));
}

TEST(CheckpointStorage, EveryChoiceThatCarriesIsFastAndLargeEnough) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    StorageDemand demand{.bytes = std::exp(std::uniform_real_distribution(16.0, 31.0)(random)),
                         .ranks = 1 + static_cast<int64_t>(random() % 4000),
                         .nodes = 1 + static_cast<int64_t>(random() % 500),
                         .keep = 1 + static_cast<int64_t>(random() % 9),
                         .write_s = std::exp(std::uniform_real_distribution(0.0, 9.0)(random))};
    const auto plan = plan_checkpoint_storage(demand);
    ASSERT_TRUE(plan);
    for (const StorageChoice& choice : plan->choices) {
      if (!choice.carries) continue;
      EXPECT_LE(choice.write_s, demand.write_s * (1 + 1e-6)) << choice.name;
      if (choice.name == "gp3") {
        EXPECT_LE(choice.iops, 16'000);
        EXPECT_LE(choice.iops, choice.gib * 500);
        continue;
      }
      if (choice.gib == 0) continue;
      EXPECT_GE(static_cast<double>(choice.gib) * (1 << 30), plan->space_bytes * (1 - 1e-6)) << choice.name;
      EXPECT_TRUE(choice.gib == 1200 || choice.gib % 2400 == 0);
      EXPECT_LE(choice.stripe_count, std::max<int64_t>(1, choice.gib / 2400));
    }
  }
  EXPECT_FALSE(plan_checkpoint_storage({.bytes = 0, .write_s = 1}));
  EXPECT_FALSE(plan_checkpoint_storage({.bytes = 1, .write_s = 0}));
}

}  // namespace
}  // namespace millrace::plan
