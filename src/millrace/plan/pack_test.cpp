// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/pack.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::plan {
namespace {

using testing::HasSubstr;

// 8 H200, 192 vCPUs, 95 % of 2 TiB, 30.4 TB.
constexpr Resources kP5e{8, 192, 1'992'294, 30'400'000};

PackOptions jobs_of(std::vector<int64_t> gpus) {
  PackOptions options{.node = kP5e, .gpu_type = "h200"};
  for (const int64_t count : gpus) options.jobs.push_back({.name = "job", .needs = {.gpus = count}});
  return options;
}

TEST(PlanPack, FourAndFourAndTwoThreeThree) {
  for (const auto& gpus : {std::vector<int64_t>{8}, {4, 4}, {2, 3, 3}}) {
    const auto plan = plan_pack(jobs_of(gpus));
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->nodes.size(), 1U);
    EXPECT_TRUE(plan->proven);
    EXPECT_EQ(plan->nodes[0].left.gpus, 0);
  }
  const auto four = plan_pack(jobs_of({4, 4}));
  EXPECT_EQ(four->jobs[0].needs, (Resources{4, 96, 996'147, 15'200'000}));
  EXPECT_EQ(four->sbatch[0], "--nodes=1 --ntasks-per-node=1 --gpus-per-node=h200:4 --cpus-per-task=96 --mem=996147M");
  EXPECT_EQ(plan_pack(jobs_of({1}))->jobs[0].needs.memory_mib, 249'036);
  EXPECT_EQ(plan_pack(jobs_of({5, 5, 3, 3}))->nodes.size(), 2U);
}

TEST(PlanPack, WhatDefeatsIt) {
  PackOptions options = jobs_of({4, 4});
  options.whole_nodes = true;
  const auto whole = plan_pack(options);
  EXPECT_EQ(whole->nodes.size(), 2U);
  EXPECT_THAT(whole->sbatch[0], HasSubstr("--exclusive --mem=0"));
  options = jobs_of({4, 4});
  options.jobs[0].needs.memory_mib = kP5e.memory_mib;  // as a job without --mem does
  EXPECT_EQ(plan_pack(options)->nodes.size(), 2U);
  options = jobs_of({4, 2});
  options.jobs[0].needs.cpus = 144;
  const auto stranded = plan_pack(options);
  EXPECT_EQ(stranded->nodes[0].left.gpus, 2);
  EXPECT_THAT(stranded->why.notes.back(), HasSubstr("2 GPUs of a node are stranded"));
}

TEST(PlanPack, FewerNodesThanItTakes) {
  PackOptions options = jobs_of({8, 8, 4});
  options.nodes = 2;
  const auto plan = plan_pack(options);
  EXPECT_EQ(plan->nodes.size(), 2U);
  EXPECT_EQ(plan->unplaced, std::vector<size_t>{2});
  EXPECT_EQ(plan->needed, 3);
  EXPECT_FALSE(plan_pack(jobs_of({9})));
  EXPECT_FALSE(plan_pack(jobs_of({0})));
  EXPECT_FALSE(plan_pack(jobs_of({})));
}

// The fewest nodes by trying every place of every job.
size_t fewest_by_brute_force(const std::vector<Resources>& jobs, const Resources& node) {
  size_t best = jobs.size();
  std::vector<Resources> nodes;
  std::function<void(size_t)> go = [&](size_t i) {
    if (nodes.size() >= best && i < jobs.size()) return;
    if (i == jobs.size()) {
      best = std::min(best, nodes.size());
      return;
    }
    const Resources& job = jobs[i];
    for (size_t n = 0; n <= nodes.size(); ++n) {
      if (n == nodes.size()) nodes.push_back(node);
      const Resources before = nodes[n];
      Resources after{before.gpus - job.gpus, before.cpus - job.cpus, before.memory_mib - job.memory_mib,
                      before.disk_mb - job.disk_mb};
      const bool opened = before == node;
      if (after.gpus >= 0 && after.cpus >= 0 && after.memory_mib >= 0 && after.disk_mb >= 0) {
        nodes[n] = after;
        go(i + 1);
        nodes[n] = before;
      }
      if (opened && n + 1 == nodes.size()) {
        nodes.pop_back();
        break;
      }
    }
  };
  go(0);
  return best;
}

TEST(PlanPack, EqualsBruteForceAndNeverOverfillsANode) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int round = 0; round < 500; ++round) {
    PackOptions options{.node = {8, 16, 1000, 500}};
    std::vector<Resources> all;
    for (int64_t i = 1 + below(4); i > 0; --i) {
      PackJob job{
          .name = "j", .needs = {1 + below(8), 1 + below(16), 1 + below(1000), 1 + below(500)}, .count = 1 + below(2)};
      all.insert(all.end(), static_cast<size_t>(job.count), job.needs);
      options.jobs.push_back(job);
    }
    const auto plan = plan_pack(options);
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->nodes.size(), fewest_by_brute_force(all, options.node));
    ASSERT_TRUE(plan->proven);
    ASSERT_LE(plan->fewest, static_cast<int64_t>(plan->nodes.size()));
    size_t placed = 0;
    for (const PackedNode& node : plan->nodes) {
      Resources sum = node.left;
      for (const size_t index : node.jobs) {
        const Resources& needs = plan->jobs[index].needs;
        sum = {sum.gpus + needs.gpus, sum.cpus + needs.cpus, sum.memory_mib + needs.memory_mib,
               sum.disk_mb + needs.disk_mb};
      }
      ASSERT_EQ(sum, options.node);
      ASSERT_GE(std::min({node.left.gpus, node.left.cpus, node.left.memory_mib, node.left.disk_mb}), 0);
      placed += node.jobs.size();
    }
    ASSERT_EQ(placed, all.size());
  }
}

}  // namespace
}  // namespace millrace::plan
