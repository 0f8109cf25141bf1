// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/eta.h"

#include <gmock/gmock.h>

#include <random>

#include "millrace/base/testing.h"

namespace millrace::plan {
namespace {

EtaPlan plan_of(const EtaOptions& options) {
  auto plan = plan_eta(options);
  EXPECT_TRUE(plan) << plan.error().to_string();
  return *std::move(plan);
}

TEST(PlanEta, EveryTermIsCounted) {
  EtaOptions options{.steps = 10000, .micro = 10, .gpus = 4, .accumulation = 3, .sample_s = 0.1, .tolerance = 0};
  EXPECT_EQ(plan_of(options).step_s, (Range{3, 3}));
  EXPECT_EQ(plan_of(options).total_s, (Range{30000, 30000}));
  EXPECT_EQ(plan_of(options).samples_per_s, (Range{40, 40}));
  options.sample_bytes = 1e6;
  options.read_bytes_per_s = 100e6;  // 120 samples: 1.2 s, hidden
  EXPECT_EQ(plan_of(options).step_s, (Range{3, 3}));
  options.read_bytes_per_s = 30e6;  // 4 s
  EXPECT_EQ(plan_of(options).step_s, (Range{4, 4}));
  EXPECT_EQ(plan_of(options).exposed_read_s, (Range{1, 1}));
  options.gradient_bytes = 1e9;
  options.network_bytes_per_s = 1e9;  // 2 x 3/4 s at worst
  EXPECT_EQ(plan_of(options).step_s, (Range{4, 5.5}));
  options.checkpoint_bytes = 5e9;
  options.write_bytes_per_s = 1e9;
  options.checkpoint_every_steps = 10;
  EXPECT_EQ(plan_of(options).step_s, (Range{4.5, 6}));
  options.usd_per_gpu_hour = 2;
  EXPECT_NEAR(plan_of(options).usd->high, 6.0 * 10000 * 4 / 3600 * 2, 1e-6);
  options.micro_steps = true;
  EXPECT_EQ(plan_of(options).steps, 3334);
}

// Each GPU of a copy holds a part of the model, and exchanges the gradients of that part with its peers in other
// copies.
TEST(PlanEta, GradientsAreSharedByModelParallelism) {
  EtaOptions options{.steps = 1, .gpus = 16, .sample_s = 1, .gradient_bytes = 16e9, .network_bytes_per_s = 1e9};
  EXPECT_NEAR(plan_of(options).sync_s.high, 2 * 15.0 / 16 * 16, 1e-9);
  options.model_parallel = 4;
  EXPECT_NEAR(plan_of(options).sync_s.high, 2 * 3.0 / 4 * 16 / 4, 1e-9);
  options.model_parallel = 16;  // one copy: nobody to exchange with
  EXPECT_EQ(plan_of(options).sync_s.high, 0);
}

TEST(PlanEta, FromTheModelsSize) {
  const EtaOptions options{.steps = 1,
                           .micro = 1,
                           .gpus = 8,
                           .model_parallel = 8,
                           .gpu = *find_gpu("h100"),
                           .parameters = 70e9,
                           .tokens = 4096,
                           .utilisation = {0.4, 0.5}};
  EXPECT_NEAR(plan_of(options).sample_s.high, 6 * 70e9 * 4096 / (989e12 * 0.4 * 8), 1e-9);
  EXPECT_LT(plan_of(options).sample_s.low, plan_of(options).sample_s.high);
  // The measurement of one GPU that is the same.
  EtaOptions measured{.steps = 1, .gpus = 8, .model_parallel = 8, .tolerance = 0};
  measured.sample_s = 6 * 70e9 * 4096 / (989e12 * 0.4);
  EXPECT_NEAR(plan_of(measured).sample_s.high, plan_of(options).sample_s.high, 1e-9);
}

TEST(PlanEta, OtherGpusByTheRoofline) {
  const Gpu l40s = *find_gpu("l40s"), rtx4090 = *find_gpu("4090");
  const Range there = transferred_s({1, 1}, rtx4090, l40s);
  EXPECT_NEAR(there.low, 165.0 / 362, 1e-9);
  EXPECT_NEAR(there.high, 1008.0 / 864, 1e-9);
  EtaOptions options{.steps = 1, .sample_s = 1, .measured_on = rtx4090, .gpu = rtx4090};
  EXPECT_NEAR(plan_of(options).sample_s.high, 1.1, 1e-9);
  options.gpu = l40s;
  EXPECT_NEAR(plan_of(options).sample_s.low, 0.9 * 165 / 362, 1e-9);
}

TEST(PlanEta, WhatIsMissingIsSaid) {
  EXPECT_FALSE(plan_eta({}));
  EXPECT_FALSE(plan_eta({.steps = 1}));
  EXPECT_FALSE(plan_eta({.steps = 1, .gpus = 6, .model_parallel = 4, .sample_s = 1}));
  EXPECT_FALSE(plan_eta({.steps = 1, .sample_s = 1, .sample_bytes = 1}));
  EXPECT_FALSE(plan_eta({.steps = 1, .sample_s = 1, .gradient_bytes = 1}));
  EXPECT_FALSE(plan_eta({.steps = 1, .sample_s = 1, .checkpoint_bytes = 1}));
  EXPECT_FALSE(plan_eta({.steps = 1, .sample_s = 1, .checkpoint_stall_s = 1}));
  EXPECT_FALSE(plan_eta({.steps = 1, .sample_s = 1, .measured_on = *find_gpu("t4")}));
  EXPECT_FALSE(plan_eta({.steps = 1, .gpu = *find_gpu("t4"), .parameters = 1, .tokens = 1, .utilisation = {0.3, 2}}));
}

// More of anything that takes time never makes a run shorter, and low ends stay below high ones.
TEST(PlanEta, RangesAreOrderedAndMonotone) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto between = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  for (int round = 0; round < 2000; ++round) {
    const auto any_gpu = [&] { return gpus()[random() % gpus().size()]; };
    EtaOptions options{.steps = between(1, 1e6),
                       .micro = static_cast<int64_t>(1 + random() % 16),
                       .gpus = static_cast<int64_t>(1 + random() % 64),
                       .accumulation = static_cast<int64_t>(1 + random() % 4),
                       .sample_s = between(0.001, 5),
                       .measured_on = any_gpu(),
                       .gpu = any_gpu(),
                       .sample_bytes = between(1, 1e7),
                       .read_bytes_per_s = between(1e6, 1e10),
                       .gradient_bytes = between(1, 1e10),
                       .network_bytes_per_s = between(1e8, 1e11),
                       .checkpoint_bytes = between(1, 1e11),
                       .write_bytes_per_s = between(1e8, 1e10),
                       .checkpoint_every_steps = between(1, 1e4),
                       .usd_per_gpu_hour = 1};
    const EtaPlan plan = plan_of(options);
    for (const Range& range : {plan.sample_s, plan.compute_s, plan.exposed_read_s, plan.sync_s, plan.step_s,
                               plan.total_s, plan.samples_per_s, plan.gpu_hours, *plan.usd}) {
      ASSERT_LE(range.low, range.high);
      ASSERT_GE(range.low, 0);
    }
    for (double EtaOptions::* field : {&EtaOptions::steps, &EtaOptions::sample_s, &EtaOptions::sample_bytes,
                                       &EtaOptions::gradient_bytes, &EtaOptions::checkpoint_bytes}) {
      EtaOptions more = options;
      more.*field *= 1.5;
      ASSERT_GE(plan_of(more).total_s.low, plan.total_s.low);
      ASSERT_GE(plan_of(more).total_s.high, plan.total_s.high);
    }
  }
}

}  // namespace
}  // namespace millrace::plan
