// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "millrace/plan/detail/table.h"

namespace millrace::plan {

namespace {

constexpr double kGuideBaseGib = 5, kGuideOverheadGib = 2, kGuidePerSampleGib = 1.2;
constexpr const char* kGuide = "GPU strategy guide (GR00T), its constants";

struct LevelName {
  std::string_view name;
  double utilisation;
};
constexpr std::array<LevelName, 3> kLevels{{{"conservative", 0.75}, {"recommended", 0.85}, {"aggressive", 0.95}}};

// The largest batch with fixed + per_sample x batch <= room; 0 where not even one fits.
int64_t largest_batch(double room_gib, double fixed_gib, double per_sample_gib) {
  // 1.2 x 10 must fit into 12 though 1.2 is no binary number.
  const double count = std::floor((room_gib - fixed_gib) / per_sample_gib + 1e-9);
  return static_cast<int64_t>(std::clamp(count, 0.0, 1e12));
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

}  // namespace

MemoryModel guide_model() {
  MemoryModel model{.basis = kGuideBasis,
                    .fixed_gib = Range::point(kGuideBaseGib),
                    .per_sample_gib = Range::point(kGuidePerSampleGib),
                    .overhead_gib = kGuideOverheadGib,
                    .confidence = "low"};
  model.why.terms = {{"fixed", model.fixed_gib, "GiB", kGuide},
                     {"per_sample", model.per_sample_gib, "GiB", kGuide},
                     {"overhead", Range::point(model.overhead_gib), "GiB", kGuide}};
  model.why.notes.emplace_back(
      "the guide's constants are GR00T's, and its 5 GiB are weights alone: full fine-tuning with AdamW needs 16 to 18 "
      "bytes a parameter besides (--preset full-adamw); measure two batches and give them with --measured");
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
    if (!(prior.per_sample_gib.high > 0)) {
      return fail(ErrorCode::kInvalidArgument,
                  "one measured batch size cannot tell fixed from per-sample memory: measure a second one (--measured "
                  "twice), or give the memory of a sample (--per-sample) or the model (--parameters and the rest)");
    }
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
    if (line.fixed + 2 * line.residual < 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          "the measured peaks leave {:.1f} GiB for weights and optimizer, which cannot be: are the units right, "
          "and is each the peak of a fresh run?",
          line.fixed);
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

Result<BatchPlan> plan_batch(const MemoryModel& model, double usable_gib) {
  if (!(model.per_sample_gib.low > 0))
    return fail(ErrorCode::kInvalidArgument,
                "a sample that takes no memory cannot be: give its size (--per-sample 1GiB)");
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
  if (plan.max_high > kMaxBatch) {
    return fail(ErrorCode::kInvalidArgument,
                "{} samples on one GPU, of {:.3g} MiB each, cannot be (the most that is answered is {}): are the units "
                "right?",
                plan.max_high, model.per_sample_gib.low * 1024, kMaxBatch);
  }
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

std::span<const GuideRow> guide_table() {
  static const std::vector<GuideRow> kTable = [] {
    std::vector<GuideRow> table;
    for (const data::Row& row :
         data::rows_of(data::k_guide_batches, "gpu,name,gb,conservative,recommended,aggressive")) {
      table.push_back(
          {row[0], row[1], data::number(row[2]), {data::whole(row[3]), data::whole(row[4]), data::whole(row[5])}});
    }
    return table;
  }();
  return kTable;
}

std::vector<std::string> guide_disagreements(std::string_view gpu_id) {
  std::vector<std::string> notes;
  const std::span<const GuideRow> table = guide_table();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const GuideRow& each) { return each.gpu_id == gpu_id; });
  if (row == table.end()) return notes;
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
