// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

namespace millrace::plan {

namespace {

constexpr double kGib = 1073741824.0;
constexpr double kGuideBaseGib = 5, kGuideOverheadGib = 2, kGuidePerSampleGib = 1.2;
constexpr const char* kGuide = "GPU strategy guide (GR00T), its constants";
constexpr int64_t kMaxBatch = 1'000'000;
// An activation formula leaves out what frameworks keep besides: its upper end is this much more.
constexpr double kPriorMargin = 1.25;
constexpr const char* kActivations =
    "activation memory of a transformer layer with fused attention, Korthikanti et al. 2022 (arXiv 2205.05198)";

struct LevelName {
  std::string_view name;
  double utilisation;
};
constexpr std::array<LevelName, 3> kLevels{{{"conservative", 0.75}, {"recommended", 0.85}, {"aggressive", 0.95}}};

// The largest batch with fixed + per_sample x batch <= room; 0 where not even one fits.
int64_t largest_batch(double room_gib, double fixed_gib, double per_sample_gib) {
  // 1.2 x 10 must fit into 12 though 1.2 is no binary number.
  const double count = std::floor((room_gib - fixed_gib) / per_sample_gib + 1e-9);
  return std::clamp<int64_t>(static_cast<int64_t>(std::clamp(count, 0.0, 1e12)), 0, kMaxBatch);
}

double shard_of(int stage, int from_stage, int64_t shards) {
  return stage >= from_stage ? 1.0 / static_cast<double>(shards) : 1.0;
}

Status check_options(const PresetOptions& options, const Preset* preset) {
  if (preset == nullptr) {
    std::string names;
    for (const Preset& each : presets()) names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
    return fail(ErrorCode::kInvalidArgument, "no preset is called '{}'; there are {}", options.preset, names);
  }
  const ModelShape& shape = options.shape;
  if (shape.parameters <= 0)
    return fail(ErrorCode::kInvalidArgument, "the number of parameters is missing (--parameters 3B)");
  if (options.zero_stage < 0 || options.zero_stage > 3 || options.shards < 1) {
    return fail(ErrorCode::kInvalidArgument, "a ZeRO stage is 0 to 3, and 1 or more ranks share the state");
  }
  const double trainable = shape.trainable.value_or(preset->trainable);
  if (!(trainable > 0 && trainable <= 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "the preset {} needs the share of parameters that are trained (--trainable 0.3)", preset->name);
  }
  const bool has_shape = shape.layers > 0 && shape.hidden > 0 && shape.tokens + shape.images * shape.image_tokens > 0;
  if (!options.per_sample_gib && !has_shape) {
    return fail(ErrorCode::kInvalidArgument,
                "memory for one sample needs layers, hidden size and tokens, or a size (--layers 32 --hidden 4096 "
                "--tokens 4096, or --per-sample 1.2GiB)");
  }
  return {};
}

Range activation_gib(const PresetOptions& options, Why& why) {
  const ModelShape& shape = options.shape;
  const auto hidden = static_cast<double>(shape.hidden), layers = static_cast<double>(shape.layers);
  const auto tokens = static_cast<double>(shape.tokens + shape.images * shape.image_tokens);
  const bool full = options.recompute == Recompute::kFull;
  // With recompute each layer keeps its input, and one layer at a time is whole.
  const double per_token = full ? 2 * hidden * layers + 34 * hidden : 34 * hidden * layers;
  // 16-bit logits, their copy in FP32.
  const double logits = 6.0 * static_cast<double>(shape.vocabulary);
  const double gib = tokens * (per_token + logits) / kGib;
  why.formulas.emplace_back(full ? "per_sample = tokens x ((2 x layers + 34) x hidden + 6 x vocabulary) bytes"
                                 : "per_sample = tokens x (34 x layers x hidden + 6 x vocabulary) bytes");
  why.formulas.emplace_back("tokens = text tokens + images x image tokens");
  const auto count = [](int64_t value) { return Range::point(static_cast<double>(value)); };
  why.terms.push_back({"text tokens", count(shape.tokens), "", kGiven});
  if (shape.images > 0) {
    why.terms.push_back({"images", count(shape.images), "", kGiven});
    why.terms.push_back({"image tokens", count(shape.image_tokens), "", kGiven});
  }
  why.terms.push_back({"layers", count(shape.layers), "", kGiven});
  why.terms.push_back({"hidden", count(shape.hidden), "", kGiven});
  why.terms.push_back(
      {"vocabulary", count(shape.vocabulary), "", shape.vocabulary > 0 ? kGiven : "not given: logits are not counted"});
  why.terms.push_back({full ? "2 and 34" : "34", Range::point(34), "B a token, layer and hidden unit", kActivations});
  why.terms.push_back({"margin",
                       {1, kPriorMargin},
                       "x per_sample",
                       "Millrace's own choice for an activation formula that was not measured"});
  return {gib, gib * kPriorMargin};
}

struct Line {
  double fixed = 0, slope = 0, residual = 0;
};

Line least_squares(std::span<const Measured> points) {
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
  const auto count = static_cast<double>(points.size());
  for (const Measured& point : points) {
    mean_x += static_cast<double>(point.batch) / count;
    mean_y += point.gib / count;
  }
  for (const Measured& point : points) {
    const double dx = static_cast<double>(point.batch) - mean_x;
    xx += dx * dx;
    xy += dx * (point.gib - mean_y);
  }
  Line line;
  line.slope = xy / xx;
  line.fixed = mean_y - line.slope * mean_x;
  double squares = 0;
  for (const Measured& point : points) {
    const double off = point.gib - line.fixed - line.slope * static_cast<double>(point.batch);
    squares += off * off;
  }
  line.residual = std::sqrt(squares / count);
  return line;
}

std::string confidence_of(size_t points, double residual, double largest) {
  if (points >= 3 && residual <= 0.03 * largest) return "high";
  return residual <= 0.10 * largest ? "medium" : "low";
}

struct GuideRow {
  std::string_view gpu_id;
  std::string_view name;
  double gib;
  std::array<int64_t, 3> batches;
};
constexpr std::array<GuideRow, 4> kGuideTable{{{"rtx2080ti", "2080 Ti, and the MIG slice of 11 GB", 11, {2, 4, 6}},
                                               {"rtx4070", "4070", 12, {3, 5, 7}},
                                               {"rtx4090", "4090", 24, {6, 10, 14}},
                                               {"l40s", "L40S", 48, {12, 16, 20}}}};

}  // namespace

MemoryModel guide_model() {
  MemoryModel model{.basis = "guide constants",
                    .fixed_gib = Range::point(kGuideBaseGib),
                    .per_sample_gib = Range::point(kGuidePerSampleGib),
                    .overhead_gib = kGuideOverheadGib,
                    .confidence = "low"};
  model.why.terms = {{"fixed", model.fixed_gib, "GiB", kGuide},
                     {"per_sample", model.per_sample_gib, "GiB", kGuide},
                     {"overhead", Range::point(model.overhead_gib), "GiB", kGuide}};
  model.why.notes.emplace_back(
      "the guide's 5 GiB are weights alone: full fine-tuning with AdamW needs 16 to 18 bytes a parameter besides "
      "(--preset full-adamw); measure two batches and give them with --measured");
  return model;
}

std::span<const Preset> presets() {
  static constexpr std::array<Preset, 4> kPresets{{
      {"full-adamw", "every parameter, bf16 with FP32 master copy and moments", 2, {2, 4}, 4, 8, 1},
      {"lora", "frozen bf16 weights, adapters of 1 % trained as full-adamw", 2, {2, 4}, 4, 8, 0.01},
      {"frozen-backbone", "frozen bf16 weights, a given share trained as full-adamw", 2, {2, 4}, 4, 8, 0},
      {"adamw-8bit", "every parameter, FP32 master copy, moments of 8 bits", 2, {2, 4}, 4, 2, 1},
  }};
  return kPresets;
}

Result<MemoryModel> preset_model(const PresetOptions& options) {
  const auto found =
      std::find_if(presets().begin(), presets().end(), [&](const Preset& each) { return each.name == options.preset; });
  const Preset* preset = found == presets().end() ? nullptr : &*found;
  RETURN_IF_ERROR(check_options(options, preset));
  const double trainable = options.shape.trainable.value_or(preset->trainable);
  const double parameters = options.shape.parameters;

  MemoryModel model{.basis = std::string(preset->name), .overhead_gib = options.overhead_gib, .confidence = "low"};
  const Range weights = Range::point(preset->weight_bytes * shard_of(options.zero_stage, 3, options.shards));
  const Range gradients = preset->gradient_bytes * (trainable * shard_of(options.zero_stage, 2, options.shards));
  const Range optimizer = Range::point((preset->master_bytes + preset->moment_bytes) * trainable *
                                       shard_of(options.zero_stage, 1, options.shards));
  model.fixed_gib = (weights + gradients + optimizer) * (parameters / kGib);

  Why& why = model.why;
  why.formulas.emplace_back(
      "fixed = parameters x (weight bytes / s3 + trainable x (gradient bytes / s2 + optimizer bytes / s1)); "
      "s1, s2, s3 = shards from ZeRO stage 1, 2, 3 on");
  const std::string source = fmt::format("preset {}: {}", preset->name, preset->what);
  why.terms.push_back({"parameters", Range::point(parameters), "", kGiven});
  why.terms.push_back(
      {"trainable", Range::point(trainable), "of the parameters", options.shape.trainable ? kGiven : source});
  why.terms.push_back({"weight bytes", Range::point(preset->weight_bytes), "B a parameter", source});
  why.terms.push_back(
      {"gradient bytes", preset->gradient_bytes, "B a trained parameter", source + "; 2 in bf16, 4 in FP32"});
  why.terms.push_back({"optimizer bytes", Range::point(preset->master_bytes + preset->moment_bytes),
                       "B a trained parameter",
                       fmt::format("{}; {} of the master copy, {} of the moments", source, preset->master_bytes,
                                   preset->moment_bytes)});
  why.terms.push_back({"ZeRO stage", Range::point(options.zero_stage), "", kGiven});
  why.terms.push_back({"shards", Range::point(static_cast<double>(options.shards)), "ranks", kGiven});
  why.terms.push_back({"overhead", Range::point(options.overhead_gib), "GiB",
                       "context of 0.5 to 1 GiB, NCCL buffers and fragmentation; the guide's 2"});
  if (options.per_sample_gib) {
    model.per_sample_gib = Range::point(*options.per_sample_gib);
    why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", kGiven});
  } else {
    model.per_sample_gib = activation_gib(options, why);
    why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", "by the formula"});
  }
  why.terms.push_back({"fixed", model.fixed_gib, "GiB", "by the formula"});
  if (options.zero_stage == 3)
    why.notes.emplace_back("stage 3 gathers one layer's weights at a time besides; that is in the overhead");
  why.notes.emplace_back(
      "no peak was measured: run two batch sizes for some steps and give their peaks with --measured");
  return model;
}

Result<MemoryModel> calibrate(const MemoryModel& prior, std::span<const Measured> points) {
  if (points.empty()) return fail(ErrorCode::kInvalidArgument, "nothing was measured");
  std::set<int64_t> batches;
  double largest = 0;
  for (const Measured& point : points) {
    if (point.batch < 1 || !(point.gib > 0))
      return fail(ErrorCode::kInvalidArgument, "a measured point is a batch of 1 or more and a size");
    batches.insert(point.batch);
    largest = std::max(largest, point.gib);
  }
  MemoryModel model = prior;
  model.why = {};
  for (const Measured& point : points) {
    model.why.terms.push_back(
        {fmt::format("peak at batch {}", point.batch), Range::point(point.gib), "GiB", "measured"});
  }
  if (batches.size() == 1) {
    // The slope stays the prior's: steep means little is fixed, and the other way round.
    double mean = 0;
    for (const Measured& point : points) mean += point.gib / static_cast<double>(points.size());
    const auto batch = static_cast<double>(points[0].batch);
    const double steepest = std::min(prior.per_sample_gib.high, mean / batch);
    const double flattest = std::min(prior.per_sample_gib.low, steepest);
    model.per_sample_gib = {flattest, steepest};
    model.fixed_gib = {mean - steepest * batch, mean - flattest * batch};
    model.basis = prior.basis + ", moved to one measured batch size";
    model.confidence = "low";
    model.why.formulas.emplace_back("fixed = measured - per_sample x batch, with the prior's per_sample");
    model.why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", prior.basis});
    model.why.notes.emplace_back("one batch size cannot tell fixed from per-sample memory: measure a second one");
  } else {
    const Line line = least_squares(points);
    if (!(line.slope > 0)) {
      return fail(ErrorCode::kInvalidArgument,
                  "measured memory does not grow with the batch; give peaks that the framework allocated, since "
                  "nvidia-smi also shows what it keeps in its cache");
    }
    model.basis = "measured";
    model.residual_gib = line.residual;
    model.confidence = confidence_of(points.size(), line.residual, largest);
    model.per_sample_gib = Range::point(line.slope);
    model.fixed_gib = {line.fixed - 2 * line.residual, line.fixed + 2 * line.residual};
    model.why.formulas.emplace_back(
        "fixed, per_sample = least squares of peak = fixed + per_sample x batch; fixed within 2 residuals");
    model.why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", "fitted"});
    model.why.terms.push_back(
        {"residual", Range::point(line.residual), "GiB", "root mean square of measured - fitted"});
    if (points.size() == 2)
      model.why.notes.emplace_back("two points always fit: a third would show how good the line is");
  }
  model.why.terms.push_back({"fixed", model.fixed_gib, "GiB", "fitted"});
  model.why.terms.push_back(
      {"overhead", Range::point(model.overhead_gib), "GiB", "what the framework does not count; prior"});
  return model;
}

BatchPlan plan_batch(const MemoryModel& model, double usable_gib) {
  BatchPlan plan{.usable_gib = usable_gib, .why = model.why};
  // The ends that belong together: one measured batch ties a steep line to little fixed memory.
  const auto fits = [&](double memory_gib) {
    const double room = memory_gib - model.overhead_gib;
    const bool tied = model.basis.find("moved to one") != std::string::npos;
    const int64_t a = largest_batch(room, tied ? model.fixed_gib.low : model.fixed_gib.high, model.per_sample_gib.high);
    const int64_t b = largest_batch(room, tied ? model.fixed_gib.high : model.fixed_gib.low, model.per_sample_gib.low);
    return std::pair{std::min(a, b), std::max(a, b)};
  };
  std::tie(plan.max_low, plan.max_high) = fits(usable_gib);
  for (const LevelName& each : kLevels) {
    const auto [low, high] = fits(usable_gib * each.utilisation);
    const Range used =
        Range::point(model.overhead_gib) + model.fixed_gib + model.per_sample_gib * static_cast<double>(low);
    plan.levels.push_back({each.name, each.utilisation, low, high, used});
    plan.why.terms.push_back(
        {std::string(each.name), Range::point(each.utilisation), "of the usable memory", "Millrace's levels"});
  }
  plan.why.formulas.insert(plan.why.formulas.begin(),
                           "batch = floor((usable x level - overhead - fixed) / per_sample); level 1 is the maximum");
  if (plan.max_low == 0) {
    plan.why.notes.emplace_back(
        "not even one sample is sure to fit: shard the state (--zero 3 --shards N), recompute (--recompute full), "
        "train less (--preset lora) or take a larger GPU");
  }
  return plan;
}

std::vector<std::string> guide_disagreements(std::string_view gpu_id) {
  std::vector<std::string> notes;
  const auto row =
      std::find_if(kGuideTable.begin(), kGuideTable.end(), [&](const GuideRow& each) { return each.gpu_id == gpu_id; });
  if (row == kGuideTable.end()) return notes;
  const int64_t most = largest_batch(row->gib - kGuideOverheadGib, kGuideBaseGib, kGuidePerSampleGib);
  notes.push_back(
      fmt::format("the guide's own formula gives floor(({:.0f} - 5 - 2) / 1.2) = {} for the {:.0f} GB on the box ({}); "
                  "its table says {} / {} / {}",
                  row->gib, most, row->gib, row->name, row->batches[0], row->batches[1], row->batches[2]));
  for (size_t i = 0; i < kLevels.size(); ++i) {
    const int64_t batch = row->batches[i];
    const double used = kGuideOverheadGib + kGuideBaseGib + kGuidePerSampleGib * static_cast<double>(batch);
    const std::string sum = fmt::format("the table's {} batch {}: 5 + 2 + {} x 1.2 = {:.1f} of {:.0f} GB ({:.0f} %)",
                                        kLevels[i].name, batch, batch, used, row->gib, 100 * used / row->gib);
    if (batch > most) notes.push_back(sum + ": it does not fit");
    if (i + 1 == kLevels.size() && batch < most)
      notes.push_back(fmt::format("{}: {} samples are left unused", sum, most - batch));
  }
  return notes;
}

}  // namespace millrace::plan
