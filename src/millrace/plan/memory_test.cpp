// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/memory.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/effective_batch.h"
#include "millrace/plan/groot_guide.h"

namespace millrace::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::vector<int64_t> batches(const BatchPlan& plan) {
  std::vector<int64_t> found;
  for (const Level& level : plan.levels) found.push_back(level.batch_low);
  return found;
}

BatchPlan plan_of(const MemoryModel& model, double usable_gib) {
  auto plan = plan_batch(model, usable_gib);
  EXPECT_TRUE(plan) << plan.error().to_string();
  return *std::move(plan);
}

TEST(PlanBatch, TheGuidesFormula) {
  const MemoryModel guide = groot_guide_model();
  const std::vector<std::pair<double, int64_t>> cases{{11, 3}, {12, 4}, {24, 14}, {48, 34}, {45776.0 / 1024, 31},
                                                      {5, 0}};
  for (const auto& [gib, most] : cases) {
    EXPECT_EQ(plan_of(guide, gib).max_low, most) << gib;
    EXPECT_EQ(plan_of(guide, gib).max_high, most) << gib;
  }
  EXPECT_THAT(batches(plan_of(guide, 11)), ElementsAre(1, 1, 2));
  EXPECT_THAT(batches(plan_of(guide, 12)), ElementsAre(1, 2, 3));
  EXPECT_THAT(batches(plan_of(guide, 24)), ElementsAre(9, 11, 13));
  EXPECT_THAT(batches(plan_of(guide, 48)), ElementsAre(24, 28, 32));
  EXPECT_THAT(plan_of(guide, 5).why.notes.back(), HasSubstr("not even one sample"));
}

// Batches that the guide's own table gives: conservative, recommended, aggressive. It contradicts the formula.
struct GuideRow {
  const char* gpu_id;
  double gib;  // the number on the box
  std::array<int64_t, 3> batches;
};
constexpr GuideRow kGuideTable[] = {
    {"rtx2080ti", 11, {2, 4, 6}}, {"rtx4070", 12, {3, 5, 7}}, {"rtx4090", 24, {6, 10, 14}}, {"l40s", 48, {12, 16, 20}}};

// Our levels fit wherever the guide's formula does, and the maximum is exact: a batch of the table that passes it needs
// more than the memory.
TEST(PlanBatch, TheGuidesTableIsHeldAgainstItsFormula) {
  for (const GuideRow& row : kGuideTable) {
    EXPECT_TRUE(find_gpu(row.gpu_id)) << row.gpu_id;
    const BatchPlan plan = plan_of(groot_guide_model(), row.gib);
    for (size_t i = 0; i < row.batches.size(); ++i) {
      EXPECT_LE(7 + 1.2 * static_cast<double>(plan.levels[i].batch_low), row.gib * plan.levels[i].utilisation + 1e-9);
      EXPECT_EQ(7 + 1.2 * static_cast<double>(row.batches[i]) > row.gib, row.batches[i] > plan.max_low) << row.gpu_id;
    }
  }
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

  options = {.shape = {.parameters = 1 << 30, .layers = 16}, .shards = 8, .per_sample_gib = 1.0};
  const double gathered = 2 * 2.0 / 16;  // two layers in 16 bits
  const std::array<double, 4> lows{16, 4 + 12.0 / 8, 2 + 14.0 / 8, 2 + gathered};
  for (int stage = 0; stage < 4; ++stage) {
    options.zero_stage = stage;
    EXPECT_NEAR(preset_model(options)->fixed_gib.low, lows[static_cast<size_t>(stage)], 1e-9) << stage;
  }
  options.shape.hidden = 1024;
  options.shape.vocabulary = 1 << 16;  // 1/16 of the parameters; the largest group, with its embedding
  const double layer = (1 - 2.0 / 16) / 16;
  EXPECT_NEAR(preset_model(options)->fixed_gib.low, 2 + 2 * (2 * layer + 1.0 / 16), 1e-9);
  EXPECT_NEAR(preset_model(options)->fixed_gib.high, 18.0 / 8 + 2 * (2 * layer + 2.0 / 16) + 4 * 2.0 / 16, 1e-9);
  options.zero_stage = 4;
  EXPECT_FALSE(preset_model(options));
  EXPECT_FALSE(preset_model({.preset = "magic", .shape = {.parameters = 1e9}, .per_sample_gib = 1.0}));
}

TEST(PlanBatch, MissingFactsAreAskedFor) {
  const auto asked = [](const PresetOptions& options) { return preset_model(options).error().message(); };
  EXPECT_THAT(asked({}), AllOf(HasSubstr("--parameters"), HasSubstr("--layers"), HasSubstr("--hidden"),
                               HasSubstr("--tokens"), HasSubstr("--vocabulary")));
  EXPECT_THAT(asked({.per_sample_gib = 1.0}), AllOf(HasSubstr("--parameters"), Not(HasSubstr("--layers"))));
  const ModelShape shape{.parameters = 7e9, .layers = 32, .hidden = 4096, .tokens = 1024};
  EXPECT_THAT(asked({.shape = shape}), AllOf(HasSubstr("--vocabulary"), Not(HasSubstr("--hidden"))));
  // How much stage 3 gathers is a matter of layers, whatever a sample takes.
  const PresetOptions sharded{.shape = {.parameters = 7e9}, .zero_stage = 3, .shards = 8, .per_sample_gib = 1.0};
  EXPECT_THAT(asked(sharded), HasSubstr("--layers"));
  EXPECT_THAT(asked({.shape = {.parameters = 7}, .per_sample_gib = 1.0}), HasSubstr("write for example 7B"));
}

TEST(PlanBatch, ActivationsCountImagesLogitsAndRecompute) {
  constexpr double kGib = 1073741824;
  PresetOptions options{.shape = {.parameters = 7e9, .layers = 32, .hidden = 4096, .tokens = 1024, .vocabulary = 0}};
  const auto per_sample = [&] { return preset_model(options)->per_sample_gib; };
  const double text = per_sample().low;
  EXPECT_NEAR(text, 1024.0 * 34 * 32 * 4096 / kGib, 1e-9);
  options.shape.images = 2;
  options.shape.image_tokens = 512;
  EXPECT_NEAR(per_sample().low, 2 * text, 1e-9);
  options.recompute = Recompute::kFull;  // one layer at a time is whole
  EXPECT_NEAR(per_sample().low, 2048.0 * (2 * 32 + 32) * 4096 / kGib, 1e-9);
  options.recompute = Recompute::kSelective;
  EXPECT_NEAR(per_sample().low, 2048.0 * (16 * 32 + 18) * 4096 / kGib, 1e-9);
  options.recompute = Recompute::kFull;
  options.shape.vocabulary = 128256;  // the loss takes more than a layer, and is over before one is computed again
  EXPECT_NEAR(per_sample().low, 2048.0 * (2 * 32 * 4096 + 12 * 128256) / kGib, 1e-9);
  EXPECT_NEAR(per_sample().high, 2048.0 * (1.25 * 2 * 32 * 4096 + 16 * 128256) / kGib, 1e-9);
  options.fused_loss = true;
  EXPECT_NEAR(per_sample().low, 2048.0 * (2 * 32 * 4096 + 4 * 128256) / kGib, 1e-9);
}

constexpr ModelShape kLlama8b{.parameters = 8.03e9, .layers = 32, .hidden = 4096, .tokens = 8192, .vocabulary = 128256};
constexpr ModelShape kLlama13b{.parameters = 13.0e9, .layers = 40, .hidden = 5120, .tokens = 4096, .vocabulary = 32000};
constexpr ModelShape kLlama70b{.parameters = 69.0e9, .layers = 80, .hidden = 8192, .tokens = 4096, .vocabulary = 32000};

Range total_gib(const ModelShape& shape, int64_t shards, int64_t batch, Recompute recompute, bool fused = false) {
  const auto model =
      preset_model({.shape = shape, .zero_stage = 3, .shards = shards, .recompute = recompute, .fused_loss = fused});
  return Range::point(model->overhead_gib) + model->fixed_gib + model->per_sample_gib * static_cast<double>(batch);
}

// What torchtitan measured (peak of reserved memory): benchmarks/llama3_h100_202412_torchtitan.md, tables 1 to 3, with
// an eager loss; benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md, with a compiled one. docs/plan.md shows the
// table.
TEST(PlanBatch, TheRangeContainsWhatWasMeasured) {
  struct Published {
    int64_t tokens, shards, batch;
    Recompute recompute;
    bool fused;
    std::vector<double> peaks_gib;
  };
  const std::vector<Published> all{{8192, 8, 2, Recompute::kSelective, false, {82.4, 77.0, 76.8}},
                                   {8192, 128, 2, Recompute::kSelective, false, {67.0, 62.0, 61.8}},
                                   {32768, 8, 1, Recompute::kFull, false, {83.9, 84.2, 84.0, 84.5}},
                                   {8192, 32, 2, Recompute::kSelective, true, {47.96}},
                                   {8192, 64, 2, Recompute::kSelective, true, {46.97}}};
  for (const Published& each : all) {
    ModelShape shape = kLlama8b;
    shape.tokens = each.tokens;
    const Range range = total_gib(shape, each.shards, each.batch, each.recompute, each.fused);
    for (const double peak : each.peaks_gib) {
      EXPECT_LE(range.low, peak) << each.tokens << " tokens, " << each.shards << " shards";
      EXPECT_GE(range.high, peak) << each.tokens << " tokens, " << each.shards << " shards";
    }
    EXPECT_LT(range.high, 1.4 * range.low);  // or any figure would be contained
  }
}

// torchtitan's performance page of 2024-04 (commit 395a526): Llama 2 on 64 A100 of 80 GB, and what ran out of memory.
TEST(PlanBatch, WhatRanAndWhatDidNot) {
  const double gib = find_gpu("a100-80gb")->memory_mib.value / 1024;
  EXPECT_LT(total_gib(kLlama13b, 64, 2, Recompute::kNone).low, gib);
  EXPECT_LT(total_gib(kLlama13b, 64, 2, Recompute::kSelective).high, gib);
  EXPECT_LT(total_gib(kLlama70b, 64, 1, Recompute::kSelective).low, gib);
  EXPECT_LT(total_gib(kLlama70b, 64, 2, Recompute::kFull).high, gib);
  EXPECT_GT(total_gib(kLlama70b, 64, 2, Recompute::kSelective).low, gib);  // out of memory
  // GR00T N1, full fine-tuning on a 4090: out of memory at batch 1 (NVIDIA/Isaac-GR00T#153); LoRA ran on a 3090 (#52).
  PresetOptions groot{.shape = {.parameters = 2'192'584'944, .trainable = 1}, .per_sample_gib = 0.1};
  EXPECT_EQ(plan_of(*preset_model(groot), find_gpu("rtx4090")->memory_mib.value / 1024).max_high, 0);
  groot.shape.trainable = 0.001171;
  EXPECT_GE(plan_of(*preset_model(groot), find_gpu("rtx3090")->memory_mib.value / 1024).max_low, 24);
}

TEST(PlanBatch, AnswersThatCannotBeAreRefused) {
  const MemoryModel tiny{.basis = "given constants", .fixed_gib = {1, 1}, .per_sample_gib = {1e-5, 1e-5}};
  EXPECT_THAT(plan_batch(tiny, 24).error().message(), HasSubstr("cannot be"));
  EXPECT_TRUE(plan_batch(tiny, 1.5));
  MemoryModel nothing = tiny;
  nothing.per_sample_gib = {};
  EXPECT_THAT(plan_batch(nothing, 24).error().message(), HasSubstr("takes no memory"));
  // 21.3 B where 21.3 GiB are meant, and a second point that grows by more than the batch.
  const std::array steep{Measured{8, 10}, Measured{9, 20}};
  EXPECT_THAT(calibrate(groot_guide_model(), steep).error().message(), HasSubstr("cannot be"));
  const std::array one{Measured{8, 21.3}};
  EXPECT_THAT(calibrate(nothing, one).error().message(), HasSubstr("measure a second one"));
}

TEST(PlanBatch, MeasuredPointsDecide) {
  const std::array exact{Measured{4, 14.8}, Measured{8, 21.3}, Measured{12, 27.8}};
  const auto model = calibrate(groot_guide_model(), exact);
  ASSERT_TRUE(model);
  EXPECT_NEAR(model->per_sample_gib.low, 1.625, 1e-9);
  EXPECT_NEAR(model->fixed_gib.low, 8.3, 1e-9);
  EXPECT_NEAR(*model->residual_gib, 0, 1e-9);
  EXPECT_EQ(model->confidence, "high");
  const std::array noisy{Measured{4, 14.8}, Measured{8, 23}, Measured{12, 26}};
  EXPECT_EQ(calibrate(groot_guide_model(), noisy)->confidence, "medium");
  EXPECT_LT(calibrate(groot_guide_model(), noisy)->fixed_gib.low,
            calibrate(groot_guide_model(), noisy)->fixed_gib.high);
  const std::array two{Measured{4, 14.8}, Measured{8, 21.3}};
  EXPECT_EQ(calibrate(groot_guide_model(), two)->confidence, "low");
  EXPECT_EQ(calibrate(groot_guide_model(), two)->known_to, 8);
  EXPECT_EQ(plan_of(*calibrate(groot_guide_model(), two), 22).max_high, 7);
  EXPECT_THAT(plan_batch(*calibrate(groot_guide_model(), two), 80).error().message(),
              AllOf(HasSubstr("more than 8 samples"), HasSubstr("three quarters")));
  const std::array one{Measured{8, 21.3}};
  const auto moved = calibrate(groot_guide_model(), one);
  EXPECT_EQ(moved->confidence, "low");
  EXPECT_NEAR(moved->fixed_gib.low + 8 * moved->per_sample_gib.high, 21.3, 1e-9);
  const std::array flat{Measured{1, 31}, Measured{8, 31}};  // as nvidia-smi shows it
  EXPECT_THAT(calibrate(groot_guide_model(), flat).error().message(), HasSubstr("nvidia-smi"));
  EXPECT_FALSE(calibrate(groot_guide_model(), {}));
}

// Peaks of allocated and reserved memory on an H200: 1.07 B parameters, bf16 autocast, AdamW, sequence 1,024,
// vocabulary 128,256.
const std::vector<Measured> kH200{{1, 20.1, 22.1}, {2, 20.6, 23.1},  {4, 27.1, 29.9},
                                  {8, 40.1, 44.3}, {12, 53.2, 61.9}, {16, 66.2, 85.3}};

std::vector<Measured> h200(std::initializer_list<int64_t> chosen, bool reserved = true) {
  std::vector<Measured> points;
  for (Measured point : kH200) {
    if (!reserved) point.reserved_gib.reset();
    if (std::ranges::find(chosen, point.batch) != chosen.end()) points.push_back(point);
  }
  return points;
}

TEST(PlanBatch, ThePeakIsTheLargerOfTwoLines) {
  const double usable = find_gpu("h200")->memory_mib.value / 1024;
  for (const auto& points : {h200({1, 2, 4, 8, 12, 16}), h200({1, 4, 8, 16}), h200({2, 4, 8, 12, 16}), h200({4, 8, 16}),
                             h200({1, 8, 12, 16})}) {
    const auto model = calibrate({.overhead_gib = 2}, points);
    ASSERT_TRUE(model) << model.error().to_string();
    EXPECT_EQ(model->known_to, std::nullopt) << points.size();
    EXPECT_NEAR(model->per_sample_gib.low, 3.25, 0.03);
    for (const PlacedPoint& each : model->points)
      EXPECT_EQ(each.bound, each.point.batch == 1 ? Bound::kStep : Bound::kActivations) << each.point.batch;
    const BatchPlan plan = plan_of(*model, usable);
    EXPECT_THAT(plan.max_high, testing::AllOf(testing::Ge(37), testing::Le(39))) << "by what is allocated";
  }
  const BatchPlan all = plan_of(*calibrate({.overhead_gib = 2}, kH200), usable);
  EXPECT_EQ(all.max_low, 25) << "by what is reserved";
  EXPECT_EQ(all.max_high, 38);
  EXPECT_EQ(calibrate({}, kH200)->floor_gib, 20.1);
  EXPECT_EQ(plan_of(*calibrate({.overhead_gib = 2}, kH200), 21).max_high, 0) << "the step alone takes more";
}

TEST(PlanBatch, PointsThatCannotTellGiveNoAnswerBeyondThem) {
  const double usable = find_gpu("h200")->memory_mib.value / 1024;
  for (const auto& points : {h200({1, 4}), h200({1, 2}), h200({8, 16}), h200({1, 2, 4}), h200({1, 4, 8}),
                             h200({1, 8, 16}), h200({1, 12, 16}), h200({1, 2, 8}), h200({1, 4, 8}, false)}) {
    const auto model = calibrate({.overhead_gib = 2}, points);
    ASSERT_TRUE(model) << model.error().to_string();
    EXPECT_EQ(model->known_to, points.back().batch);
    EXPECT_THAT(plan_batch(*model, usable).error().message(), HasSubstr("cannot tell"));
  }
  // Between points there is an answer.
  const auto model = calibrate({.overhead_gib = 2}, h200({1, 4, 8}));
  EXPECT_THAT(plan_of(*model, 36).max_high, testing::AllOf(testing::Ge(4), testing::Le(8)));
  const std::array swapped{Measured{4, 29.9, 27.1}, Measured{8, 44.3, 40.1}};
  EXPECT_THAT(calibrate({}, swapped).error().message(), HasSubstr("BATCH:ALLOCATED:RESERVED"));
}

// The same model without a measurement: 16 layers of 2,048.
TEST(PlanBatch, TheFormulaContainsWhatASampleTookWithAutocast) {
  const ModelShape shape{.parameters = 1.07e9, .layers = 16, .hidden = 2048, .tokens = 1024, .vocabulary = 128256};
  const Range sample = preset_model({.shape = shape})->per_sample_gib;
  EXPECT_LE(sample.low, 3.25);
  EXPECT_GE(sample.high, 3.25);
}

// The example of the VLA guide: batch x accumulation x GPUs = 32 x 4 x 4 = 512.
TEST(PlanBatch, TheVlaGuidesEffectiveBatch) {
  const auto effective =
      plan_effective_batch({.low = 512, .high = 512, .gpus = {4}, .micro_low = 32, .micro_high = 32});
  ASSERT_TRUE(effective);
  ASSERT_THAT(effective->exact, SizeIs(1));
  EXPECT_EQ(effective->exact[0].accumulation, 4);
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
                                    .tokens = static_cast<int64_t>(random() % 4096 + 1),
                                    .vocabulary = static_cast<int64_t>(random() % 3 * 32000)},
                          .zero_stage = static_cast<int>(random() % 4),
                          .shards = static_cast<int64_t>(random() % 16 + 1)};
    MemoryModel model = round % 3 == 0 ? groot_guide_model() : *preset_model(options);
    if (round % 3 == 2) {
      std::vector<Measured> points{{1, between(1, 20)}};
      if (random() % 2 == 0)
        points.push_back({static_cast<int64_t>(random() % 20 + 2), points[0].gib + between(0.1, 20)});
      const auto calibrated = calibrate(model, points);
      if (!calibrated) continue;  // a line that leaves less than nothing for the weights
      model = *calibrated;
    }
    BatchPlan last;
    for (double gib = 1; gib < 200; gib += between(1, 30)) {
      const auto answer = plan_batch(model, gib);
      if (!answer) break;  // more than 100,000 samples
      const BatchPlan& plan = *answer;
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
