// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "millrace/plan/detail/levels.h"

namespace millrace::plan {

namespace {

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
    // The slope stays the prior's: a steep line means little fixed memory, and the reverse.
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

}  // namespace millrace::plan
