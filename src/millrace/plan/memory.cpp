// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/plan/detail/levels.h"

namespace millrace::plan {

namespace {

constexpr size_t kLeastOfLine = 3;  // points that show that they lie on one line
constexpr double kBend = 1.05;      // the last rise over the line's: above it the points bend upwards
constexpr double kMuchBetter = 3;   // a residual without the smallest batches, before these count as another line's
constexpr double kClearlyAbove = 0.005;  // of the largest peak

struct Line {
  double fixed = 0, slope = 0, residual = 0;

  double at(int64_t batch) const { return fixed + slope * static_cast<double>(batch); }
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
  for (const Measured& point : points) squares += std::pow(point.gib - line.at(point.batch), 2);
  line.residual = std::sqrt(squares / count);
  return line;
}

double rise(double from, double to, const Measured& a, const Measured& b) {
  return (to - from) / static_cast<double>(b.batch - a.batch);
}

std::string confidence_of(size_t points, double residual, double largest) {
  if (points >= kLeastOfLine && residual <= 0.03 * largest) return "high";
  return residual <= 0.10 * largest ? "medium" : "low";
}

// By batch; several of one batch as their mean, with the largest reserve.
Result<std::vector<Measured>> averaged(std::span<const Measured> points) {
  std::map<int64_t, std::vector<Measured>> by_batch;
  for (const Measured& point : points) {
    if (point.batch < 1 || !(point.gib > 0))
      return fail(ErrorCode::kInvalidArgument, "a measured point is a batch of 1 or more and a size");
    if (point.reserved_gib && *point.reserved_gib < point.gib)
      return fail(ErrorCode::kInvalidArgument,
                  "batch {}: {:.3g} GiB are reserved and {:.3g} GiB allocated, which is a part of them: the order is "
                  "BATCH:ALLOCATED:RESERVED",
                  point.batch, *point.reserved_gib, point.gib);
    by_batch[point.batch].push_back(point);
  }
  std::vector<Measured> result;
  for (const auto& [batch, same] : by_batch) {
    Measured& mean = result.emplace_back(Measured{.batch = batch});
    for (const Measured& point : same) {
      mean.gib += point.gib / static_cast<double>(same.size());
      if (point.reserved_gib) mean.reserved_gib = std::max(mean.reserved_gib.value_or(0), *point.reserved_gib);
    }
  }
  return result;
}

// How many of the smallest batches lie above the line of the others: the optimizer's step bounds them. At least three
// points stay on the line.
size_t count_step_points(std::span<const Measured> points, double largest) {
  size_t best = 0;
  for (size_t count = 1; count + kLeastOfLine <= points.size(); ++count) {
    const Line line = least_squares(points.subspan(count));
    const auto is_above = [&](const Measured& point) {
      return point.gib > line.at(point.batch) + std::max(2 * line.residual, kClearlyAbove * largest);
    };
    const bool is_better = line.residual * kMuchBetter <= least_squares(points.subspan(best)).residual;
    if (is_better && std::ranges::all_of(points.first(count), is_above)) best = count;
  }
  return best;
}

// Whether the last of `points` rises faster than all of them together: then an earlier one is bound by something else.
bool bends(std::span<const Measured> points, const Line& line) {
  const Measured &last = points.back(), &before = points[points.size() - 2];
  return rise(before.gib, last.gib, before, last) > kBend * line.slope;
}

// The line of the allocator's reserve through its last two points, at least as steep as what is allocated.
std::optional<MemoryLine> reserve_line(std::span<const Measured> points, double slope) {
  std::vector<Measured> reserved;
  for (const Measured& point : points) {
    if (point.reserved_gib) reserved.push_back(point);
  }
  if (reserved.empty()) return std::nullopt;
  const Measured& last = reserved.back();
  if (reserved.size() > 1) {
    const Measured& before = reserved[reserved.size() - 2];
    slope = std::max(slope, rise(*before.reserved_gib, *last.reserved_gib, before, last));
  }
  return MemoryLine{*last.reserved_gib - slope * static_cast<double>(last.batch), slope};
}

std::string_view bound_text(Bound bound) {
  switch (bound) {
    case Bound::kActivations:
      return "measured; on the line of the activations";
    case Bound::kStep:
      return "measured; above that line, bound by the optimizer's step";
    case Bound::kOpen:
      return "measured; on which line is open";
  }
  return "";
}

void explain_points(MemoryModel& model) {
  for (const auto& [point, bound] : model.points) {
    model.why.terms.push_back(
        {fmt::format("peak at batch {}", point.batch), Range::point(point.gib), "GiB", std::string(bound_text(bound))});
    if (point.reserved_gib)
      model.why.terms.push_back(
          {fmt::format("reserved at batch {}", point.batch), Range::point(*point.reserved_gib), "GiB", "measured"});
  }
}

// One batch size: the slope stays the prior's. A steep line means little fixed memory, and the reverse.
Result<MemoryModel> moved(MemoryModel model, const Measured& point) {
  if (!(model.per_sample_gib.high > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                "one measured batch size cannot tell fixed from per-sample memory: measure a second one (--measured "
                "twice; three tell most), or give the memory of a sample (--per-sample) or the model (--parameters and "
                "the rest)");
  }
  const auto batch = static_cast<double>(point.batch);
  const double steepest = std::min(model.per_sample_gib.high, point.gib / batch);
  const double flattest = std::min(model.per_sample_gib.low, steepest);
  const std::string prior = model.basis;
  model.why = {};
  model.points = {{point, Bound::kOpen}};
  explain_points(model);
  model.per_sample_gib = {flattest, steepest};
  model.fixed_gib = {point.gib - steepest * batch, point.gib - flattest * batch};
  model.ends = std::pair{MemoryLine{model.fixed_gib.low, steepest}, MemoryLine{model.fixed_gib.high, flattest}};
  model.basis = prior + ", moved to one measured batch size";
  model.confidence = "low";
  model.why.formulas.emplace_back("fixed = measured - per_sample x batch, with the prior's per_sample");
  model.why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", prior});
  model.why.notes.emplace_back("one batch size cannot tell fixed from per-sample memory: measure a second one");
  return model;
}

// The smaller batches of a model that is fitted, and whether there is an answer for larger ones.
Line place_points(MemoryModel& model, std::span<const Measured> points, double largest) {
  size_t step = count_step_points(points, largest);
  Line line = least_squares(points.subspan(step));
  const bool is_open = points.size() - step < kLeastOfLine || bends(points.subspan(step), line);
  if (is_open) {
    // Between the last two the peak is at most their chord, since it bends upwards only.
    step = points.size() - 2;
    line = least_squares(points.subspan(step));
    model.known_to = points.back().batch;
    model.floor_gib = points[step].gib;
    model.confidence = "low";
    model.why.notes.push_back(fmt::format(
        "the points do not show the line of the activations, on which at least three batches lie: there is no answer "
        "beyond batch {}. Measure larger ones, up to what fits",
        points.back().batch));
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const Bound bound = is_open ? Bound::kOpen : i < step ? Bound::kStep : Bound::kActivations;
    model.points.push_back({points[i], bound});
    if (bound == Bound::kStep) model.floor_gib = std::max(model.floor_gib, points[i].gib);
  }
  return line;
}

}  // namespace

Result<MemoryModel> calibrate(const MemoryModel& prior, std::span<const Measured> given) {
  if (given.empty()) return fail(ErrorCode::kInvalidArgument, "nothing was measured");
  ASSIGN_OR_RETURN(const std::vector<Measured> points, averaged(given));
  if (points.size() == 1) {
    ASSIGN_OR_RETURN(MemoryModel model, moved(prior, points[0]));
    model.why.terms.push_back({"fixed", model.fixed_gib, "GiB", "fitted"});
    model.why.terms.push_back(
        {"overhead", Range::point(model.overhead_gib), "GiB", "what the framework does not count; prior"});
    return model;
  }
  double largest = 0;
  for (const Measured& point : points) largest = std::max(largest, point.gib);
  if (!(least_squares(points).slope > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                "measured memory does not grow with the batch; give peaks that the framework allocated, since "
                "nvidia-smi also shows what it keeps in its cache. Small batches are bound by the optimizer's step: "
                "measure larger ones");
  }
  MemoryModel model{.basis = "measured", .overhead_gib = prior.overhead_gib};
  const Line line = place_points(model, points, largest);
  if (line.fixed + 2 * line.residual < 0) {
    return fail(ErrorCode::kInvalidArgument,
                "the measured peaks leave {:.1f} GiB for weights and optimizer, which cannot be: are the units right, "
                "and is each the peak of a fresh run?",
                line.fixed);
  }
  explain_points(model);
  const auto on_line = static_cast<size_t>(std::ranges::count(model.points, Bound::kActivations, &PlacedPoint::bound));
  model.residual_gib = line.residual;
  if (!model.known_to) model.confidence = confidence_of(on_line, line.residual, largest);
  model.per_sample_gib = Range::point(line.slope);
  model.fixed_gib = {line.fixed - 2 * line.residual, line.fixed + 2 * line.residual};
  model.why.formulas.emplace_back(
      "peak = max(the optimizer's step, fixed + per_sample x batch); fixed, per_sample = least squares of the points "
      "on "
      "the second line, fixed within 2 residuals");
  if (const auto reserved = reserve_line(points, line.slope)) {
    model.ends = std::pair{*reserved, MemoryLine{line.fixed, line.slope}};
    model.per_sample_gib = {line.slope, reserved->per_sample_gib};
    model.fixed_gib = {std::min(reserved->fixed_gib, line.fixed), std::max(reserved->fixed_gib, line.fixed)};
    model.why.formulas.emplace_back(
        "the pessimistic end is what the allocator reserves, with its last rise; the other end is what is allocated");
  } else {
    model.why.notes.emplace_back(
        "the allocator reserves more than is allocated, the more the fuller the GPU is: give both peaks "
        "(--measured BATCH:ALLOCATED:RESERVED) for an answer that counts it");
  }
  model.why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", "fitted"});
  model.why.terms.push_back({"residual", Range::point(line.residual), "GiB", "root mean square of measured - fitted"});
  if (model.floor_gib > 0)
    model.why.terms.push_back(
        {"least", Range::point(model.floor_gib), "GiB", "the largest peak of a smaller batch: none takes less"});
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
  const auto [steep, flat] = model.ends.value_or(std::pair{MemoryLine{model.fixed_gib.high, model.per_sample_gib.high},
                                                           MemoryLine{model.fixed_gib.low, model.per_sample_gib.low}});
  const auto fits = [&](double memory_gib) {
    const double room = memory_gib - model.overhead_gib;
    if (room < model.floor_gib) return std::pair{int64_t{0}, int64_t{0}};
    const int64_t a = largest_batch(room, steep.fixed_gib, steep.per_sample_gib);
    const int64_t b = largest_batch(room, flat.fixed_gib, flat.per_sample_gib);
    return std::pair{std::min(a, b), std::max(a, b)};
  };
  const auto used_by = [&](int64_t batch) {
    const auto count = static_cast<double>(batch);
    const double a = std::max(model.floor_gib, steep.fixed_gib + steep.per_sample_gib * count);
    const double b = std::max(model.floor_gib, flat.fixed_gib + flat.per_sample_gib * count);
    return Range{model.overhead_gib + std::min(a, b), model.overhead_gib + std::max(a, b)};
  };
  std::tie(plan.max_low, plan.max_high) = fits(usable_gib);
  if (plan.max_high > kMaxBatch) {
    return fail(ErrorCode::kInvalidArgument,
                "{} samples on one GPU, of {:.3g} MiB each, cannot be (the most that is answered is {}): are the units "
                "right?",
                plan.max_high, model.per_sample_gib.low * 1024, kMaxBatch);
  }
  if (model.known_to && plan.max_high > *model.known_to) {
    return fail(
        ErrorCode::kInvalidArgument,
        "the measured points cannot tell what more than {} samples take, and more fit: small batches are bound by "
        "the optimizer's step, larger ones by activations, and at least three must lie on the second line. "
        "Measure batches that fill about a quarter, a half and three quarters of the memory",
        *model.known_to);
  }
  for (const LevelName& each : kLevels) {
    const auto [low, high] = fits(usable_gib * each.utilisation);
    plan.levels.push_back({each.name, each.utilisation, low, high, used_by(low)});
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
