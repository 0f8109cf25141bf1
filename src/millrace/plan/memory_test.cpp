// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/memory.h"

#include <gmock/gmock.h>

#include <array>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/plan/catalogue.h"

namespace millrace::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<int64_t> batches(const BatchPlan& plan) {
  std::vector<int64_t> found;
  for (const Level& level : plan.levels) found.push_back(level.batch_low);
  return found;
}

TEST(PlanBatch, TheGuidesFormula) {
  const MemoryModel guide = guide_model();
  const std::vector<std::pair<double, int64_t>> cases{{11, 3}, {12, 4}, {24, 14}, {48, 34}, {45776.0 / 1024, 31},
                                                      {5, 0}};
  for (const auto& [gib, most] : cases) {
    EXPECT_EQ(plan_batch(guide, gib).max_low, most) << gib;
    EXPECT_EQ(plan_batch(guide, gib).max_high, most) << gib;
  }
  EXPECT_THAT(batches(plan_batch(guide, 11)), ElementsAre(1, 1, 2));
  EXPECT_THAT(batches(plan_batch(guide, 12)), ElementsAre(1, 2, 3));
  EXPECT_THAT(batches(plan_batch(guide, 24)), ElementsAre(9, 11, 13));
  EXPECT_THAT(batches(plan_batch(guide, 48)), ElementsAre(24, 28, 32));
  EXPECT_THAT(plan_batch(guide, 5).why.notes.back(), HasSubstr("not even one sample"));
}

TEST(PlanBatch, TheGuidesTableIsHeldAgainstItsFormula) {
  EXPECT_THAT(guide_disagreements("rtx2080ti"), SizeIs(3));
  EXPECT_THAT(guide_disagreements("rtx2080ti")[1],
              HasSubstr("5 + 2 + 4 x 1.2 = 11.8 of 11 GB (107 %): it does not fit"));
  EXPECT_THAT(guide_disagreements("rtx4070"), SizeIs(3));
  EXPECT_THAT(guide_disagreements("rtx4090"), SizeIs(1));
  EXPECT_THAT(guide_disagreements("l40s").back(), HasSubstr("31.0 of 48 GB (65 %): 14 samples are left unused"));
  EXPECT_THAT(guide_disagreements("h200"), IsEmpty());
}

TEST(PlanBatch, PresetsCountBytesAParameter) {
  PresetOptions options{.shape = {.parameters = 1 << 30}, .per_sample_gib = 1.0};
  EXPECT_EQ(preset_model(options)->fixed_gib, (Range{16, 18}));
  options.preset = "adamw-8bit";
  EXPECT_EQ(preset_model(options)->fixed_gib, (Range{10, 12}));
  options.preset = "lora";
  EXPECT_NEAR(preset_model(options)->fixed_gib.low, 2.14, 1e-9);
  options.preset = "frozen-backbone";
  EXPECT_EQ(preset_model(options).error().code(), ErrorCode::kInvalidArgument);
  options.shape.trainable = 0.5;
  EXPECT_EQ(preset_model(options)->fixed_gib, (Range{9, 10}));

  options = {.shape = {.parameters = 1 << 30}, .shards = 8, .per_sample_gib = 1.0};
  const std::array<double, 4> lows{16, 4 + 12.0 / 8, 2 + 14.0 / 8, 2};
  for (int stage = 0; stage < 4; ++stage) {
    options.zero_stage = stage;
    EXPECT_NEAR(preset_model(options)->fixed_gib.low, lows[static_cast<size_t>(stage)], 1e-9) << stage;
  }
  options.zero_stage = 4;
  EXPECT_FALSE(preset_model(options));
  EXPECT_FALSE(preset_model({.preset = "magic", .shape = {.parameters = 1}, .per_sample_gib = 1.0}));
  EXPECT_FALSE(preset_model({.per_sample_gib = 1.0}));
  EXPECT_FALSE(preset_model({.shape = {.parameters = 1e9}}));
}

TEST(PlanBatch, ActivationsCountImagesAndRecompute) {
  PresetOptions options{.shape = {.parameters = 7e9, .layers = 32, .hidden = 4096, .tokens = 1024}};
  const double text = preset_model(options)->per_sample_gib.low;
  EXPECT_NEAR(text, 1024.0 * 34 * 32 * 4096 / 1073741824, 1e-9);
  options.shape.images = 2;
  options.shape.image_tokens = 512;
  EXPECT_NEAR(preset_model(options)->per_sample_gib.low, 2 * text, 1e-9);
  options.recompute = Recompute::kFull;
  EXPECT_NEAR(preset_model(options)->per_sample_gib.low, 2048.0 * (2 * 32 + 34) * 4096 / 1073741824, 1e-9);
  EXPECT_GT(preset_model(options)->per_sample_gib.high, preset_model(options)->per_sample_gib.low);
}

TEST(PlanBatch, MeasuredPointsDecide) {
  const std::array exact{Measured{4, 14.8}, Measured{8, 21.3}, Measured{12, 27.8}};
  const auto model = calibrate(guide_model(), exact);
  ASSERT_TRUE(model);
  EXPECT_NEAR(model->per_sample_gib.low, 1.625, 1e-9);
  EXPECT_NEAR(model->fixed_gib.low, 8.3, 1e-9);
  EXPECT_NEAR(*model->residual_gib, 0, 1e-9);
  EXPECT_EQ(model->confidence, "high");
  const std::array noisy{Measured{4, 14.8}, Measured{8, 23}, Measured{12, 26}};
  EXPECT_EQ(calibrate(guide_model(), noisy)->confidence, "medium");
  EXPECT_LT(calibrate(guide_model(), noisy)->fixed_gib.low, calibrate(guide_model(), noisy)->fixed_gib.high);
  const std::array two{Measured{4, 14.8}, Measured{8, 21.3}};
  EXPECT_EQ(calibrate(guide_model(), two)->confidence, "medium");
  const std::array one{Measured{8, 21.3}};
  const auto moved = calibrate(guide_model(), one);
  EXPECT_EQ(moved->confidence, "low");
  EXPECT_NEAR(moved->fixed_gib.low + 8 * moved->per_sample_gib.high, 21.3, 1e-9);
  const std::array flat{Measured{1, 31}, Measured{8, 31}};  // as nvidia-smi shows it
  EXPECT_THAT(calibrate(guide_model(), flat).error().message(), HasSubstr("nvidia-smi"));
  EXPECT_FALSE(calibrate(guide_model(), {}));
}

// A batch that is measured to take so much fits exactly where so much and the overhead are there.
TEST(PlanBatch, LevelsAreMonotoneAndNeverPassTheMaximum) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto between = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  for (int round = 0; round < 3000; ++round) {
    PresetOptions options{.preset = presets()[random() % presets().size()].name,
                          .shape = {.parameters = between(1e6, 1e10),
                                    .trainable = between(0.01, 1),
                                    .layers = 8,
                                    .hidden = 512,
                                    .tokens = static_cast<int64_t>(random() % 4096 + 1)},
                          .zero_stage = static_cast<int>(random() % 4),
                          .shards = static_cast<int64_t>(random() % 16 + 1)};
    MemoryModel model = round % 3 == 0 ? guide_model() : *preset_model(options);
    if (round % 3 == 2) {
      std::vector<Measured> points{{1, between(1, 20)}};
      if (random() % 2 == 0)
        points.push_back({static_cast<int64_t>(random() % 20 + 2), points[0].gib + between(0.1, 20)});
      model = *calibrate(model, points);
    }
    BatchPlan last;
    for (double gib = 1; gib < 200; gib += between(1, 30)) {
      const BatchPlan plan = plan_batch(model, gib);
      ASSERT_LE(plan.max_low, plan.max_high);
      ASSERT_GE(plan.max_low, last.max_low);
      for (size_t i = 0; i < plan.levels.size(); ++i) {
        const Level& level = plan.levels[i];
        ASSERT_LE(level.batch_low, plan.max_low);
        ASSERT_LE(level.batch_high, plan.max_high);
        ASSERT_LE(level.batch_low, level.batch_high);
        if (i > 0) {
          ASSERT_GE(level.batch_low, plan.levels[i - 1].batch_low);
        }
        if (!last.levels.empty()) {
          ASSERT_GE(level.batch_low, last.levels[i].batch_low);
        }
        if (level.batch_low > 0 && model.fixed_gib.low >= 0) {
          ASSERT_LE(level.used_gib.low, gib * level.utilisation + 1e-6);
        }
      }
      last = plan;
    }
  }
}

}  // namespace
}  // namespace millrace::plan
