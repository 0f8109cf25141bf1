// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/advise.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/plan/groot_guide.h"

namespace millrace::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// The guide's three kinds of node: two are full, one is free and slow.
constexpr const char* kLab = R"({"partitions": [
  {"name": "gpu4090", "gpu": "rtx4090", "gpus_per_node": 4, "free_gpus": [0, 0], "cpus_per_node": 64, "memory_mib": 256000,
   "releases": [{"node": 1, "after_hours": 2, "gpus": 4}], "usd_per_gpu_hour": 0.5, "max_hours": 4},
  {"name": "gpul40s", "gpu": "gpul40s", "gpu_type": "l40s", "gpus_per_node": 6, "nodes": 1, "pending_jobs": 2, "usd_per_gpu_hour": 1.5},
  {"name": "gpu2080", "gpu": "RTX 2080 Ti", "gpus_per_node": 8, "nodes": 2, "usd_per_gpu_hour": 0.4},
  {"name": "old", "gpu": "GTX 1080", "gpus_per_node": 4, "nodes": 2}]})";

AdviceJob guide_job() {
  AdviceJob job{.memory = groot_guide_model(), .effective_low = 120, .effective_high = 144};
  job.eta.steps = 10000;
  job.eta.sample_s = 0.13;
  job.eta.measured_on = *find_gpu("rtx4090");
  return job;
}

TEST(PlanAdvise, StartNowFastestCheapest) {
  const auto plan = advise(guide_job(), *parse_partitions(kLab));
  ASSERT_TRUE(plan) << plan.error().to_string();
  ASSERT_TRUE(plan->start_now);
  const Advice& now = plan->all[*plan->start_now];
  EXPECT_EQ(now.partition, "gpu2080");
  EXPECT_TRUE(now.starts_now);
  EXPECT_THAT(now.notes, Contains(HasSubstr("no bf16")));
  EXPECT_EQ(now.sbatch.substr(0, 82),
            "sbatch --partition=gpu2080 --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --time=");
  const Advice& fastest = plan->all[*plan->fastest];
  EXPECT_EQ(fastest.partition, "gpu2080");  // 16 slow ones now against 4 faster ones in two hours
  EXPECT_TRUE(plan->priced);
  EXPECT_EQ(plan->all[*plan->cheapest].partition, "gpu4090");
  EXPECT_THAT(plan->all[*plan->cheapest].notes, Contains(HasSubstr("longer than the partition's limit of 4 h")));
  EXPECT_THAT(plan->why.notes, Contains(HasSubstr("old: left out, the catalogue does not know its GPU")));
  for (const Advice& advice : plan->all) {
    EXPECT_EQ(advice.batch.effective, advice.batch.micro * advice.batch.gpus * advice.batch.accumulation);
    EXPECT_GE(advice.batch.effective, 120);
    EXPECT_LE(advice.batch.effective, 144);
    // All see as many samples.
    EXPECT_EQ(advice.eta.steps, std::ceil(10000.0 * 144 / static_cast<double>(advice.batch.effective)));
    if (advice.partition == "gpul40s") {
      EXPECT_FALSE(advice.starts_now);
      EXPECT_FALSE(advice.wait_s);
      EXPECT_THAT(advice.sbatch, HasSubstr("--gpus-per-node=l40s:"));
    }
  }
}

// Perfect scaling makes every number of GPUs cost the same, but for whole steps.
TEST(PlanAdvise, OfEqualCostsTheFasterIsPicked) {
  AdviceJob job = guide_job();
  job.eta.steps = 9'973;
  for (const char* price : {"", R"(, "usd_per_gpu_hour": 2)"}) {
    const auto lab = parse_partitions(
        R"({"partitions": [{"name": "a", "gpu": "rtx4090", "gpus_per_node": 8, "nodes": 1, "pending_jobs": 1)" +
        std::string(price) + "}]}");
    const auto plan = advise(job, *lab);
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_GT(plan->all.size(), 3U);
    EXPECT_EQ(plan->all[*plan->cheapest].batch.gpus, 8) << price;
    EXPECT_FALSE(plan->all[*plan->cheapest].wait_s);  // unknown for all: the running time decides
  }
}

TEST(PlanAdvise, TheCommandKeepsToTheKind) {
  std::vector<Partition> lab = *parse_partitions(kLab);
  lab.resize(2);
  lab[0].constraint = "rtx4090";
  lab[1].among_others = true;
  const auto plan = advise(guide_job(), lab);
  ASSERT_TRUE(plan);
  for (const Advice& advice : plan->all) {
    const bool first = advice.partition == "gpu4090";
    EXPECT_EQ(advice.sbatch.find(" --constraint=rtx4090") != std::string::npos, first);
    EXPECT_THAT(advice.notes,
                testing::Conditional(first, Not(Contains(HasSubstr("--nodelist"))), Contains(HasSubstr("--nodelist"))));
  }
}

TEST(PlanAdvise, WhatDoesNotFitIsSaid) {
  AdviceJob job = guide_job();
  job.memory.fixed_gib = Range::point(30);
  const auto plan = advise(job, *parse_partitions(kLab));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->all[*plan->fastest].partition, "gpul40s");
  EXPECT_FALSE(plan->start_now);
  EXPECT_THAT(plan->why.notes, Contains(HasSubstr("gpu4090: left out, not even one sample")));
  job.memory.fixed_gib = Range::point(300);
  EXPECT_THAT(advise(job, *parse_partitions(kLab)).error().message(), HasSubstr("fits none of the partitions"));
  job = guide_job();
  job.eta.sample_s = 0;
  EXPECT_FALSE(advise(job, *parse_partitions(kLab)));
}

TEST(PlanPartitions, FilesAreChecked) {
  EXPECT_THAT(*parse_partitions(kLab), SizeIs(4));
  for (
      const char* bad :
      {"", "[]", R"({"partitions": [{}]})", R"({"partitions": [{"name": "a", "gpu": "t4"}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4, "free_gpus": [5]}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4, "nodes": -1}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4, "nodes": 2, "free_gpus": [1]}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4, "nodes": 2, "releases": [{"node": 2, "after_hours": 1, "gpus": 1}]}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4, "nodes": 2, "max_hours": "x"}]})",
       R"({"partitions": [{"name": "a", "gpu": "t4", "gpus_per_node": 4, "nodes": 2, "max_hours": 0}]})"}) {
    EXPECT_FALSE(parse_partitions(bad)) << bad;
  }
}

TEST(PlanPartitions, JobsTakePartOfANodeOrWholeOnes) {
  Partition partition{.gpus_per_node = 8, .free_gpus = {8, 4, 0}, .releases = {{2, 100, 8}, {1, 50, 4}}};
  EXPECT_EQ(placement(partition, 4)->nodes, 1);
  EXPECT_EQ(placement(partition, 24)->nodes, 3);
  EXPECT_FALSE(placement(partition, 12));
  EXPECT_FALSE(placement(partition, 32));
  EXPECT_EQ(free_after_s(partition, {1, 8}), 0);
  EXPECT_EQ(free_after_s(partition, {2, 4}), 0);
  EXPECT_EQ(free_after_s(partition, {2, 8}), 50);
  EXPECT_EQ(free_after_s(partition, {3, 8}), 100);
  partition.whole_nodes = true;
  EXPECT_EQ(free_after_s(partition, {2, 4}), 50);
  partition.releases.clear();
  EXPECT_FALSE(free_after_s(partition, {3, 8}));
}

// No advice is better than the one that is given.
TEST(PlanAdvise, ThePicksAreTheBestOfAll) {
  constexpr double kRounding = 1 + 1e-6, kTie = 1.01 * kRounding;
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Partition> partitions;
    for (int64_t i = 1 + below(4); i > 0; --i) {
      Partition partition{.name = fmt::format("p{}", i),
                          .gpu = gpus()[random() % gpus().size()].id,
                          .gpus_per_node = 1 + below(8),
                          .pending_jobs = below(2)};
      for (int64_t n = 1 + below(4); n > 0; --n) {
        partition.free_gpus.push_back(below(static_cast<uint64_t>(partition.gpus_per_node) + 1));
        partition.releases.push_back({partition.free_gpus.size() - 1, static_cast<double>(below(100000)),
                                      partition.gpus_per_node - partition.free_gpus.back()});
      }
      if (below(2) == 0) partition.usd_per_gpu_hour = 1 + below(5);
      partitions.push_back(partition);
    }
    AdviceJob job = guide_job();
    job.effective_low = 1 + below(100);
    job.effective_high = job.effective_low + 64;
    const auto plan = advise(job, partitions);
    if (!plan) continue;
    for (const Advice& advice : plan->all) {
      if (advice.starts_now) {
        ASSERT_TRUE(plan->start_now);
        ASSERT_LE(plan->all[*plan->start_now].eta.total_s.high, advice.eta.total_s.high * kRounding);
      }
      const Advice& fastest = plan->all[*plan->fastest];
      if (advice.wait_s) {
        ASSERT_LE(fastest.wait_s->high + fastest.eta.total_s.high,
                  (advice.wait_s->high + advice.eta.total_s.high) * kRounding);
      }
      if (advice.eta.usd) {
        const Advice& cheapest = plan->all[*plan->cheapest];
        ASSERT_LE(cheapest.eta.usd->high, advice.eta.usd->high * kTie);
        if (advice.eta.usd->high <= cheapest.eta.usd->high && !advice.wait_s && !cheapest.wait_s) {
          ASSERT_LE(cheapest.eta.total_s.high, advice.eta.total_s.high);
        }
      }
      ASSERT_EQ(advice.where.nodes * advice.where.gpus_per_node, advice.batch.gpus);
    }
  }
}

}  // namespace
}  // namespace millrace::plan
