// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/effective_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace millrace::plan {

namespace {

constexpr int64_t kMaxWays = 1'000'000;  // also of each count, so that products stay below 2^63

Status check_ways(const EffectiveBatchOptions& options) {
  const auto outside = [](int64_t value) { return value < 1 || value > kMaxWays; };
  if (options.low < 1 || options.high < options.low) {
    return fail(ErrorCode::kInvalidArgument, "the effective batch must be a range from 1 on");
  }
  if (outside(options.micro_low) || outside(options.micro_high) || options.micro_high < options.micro_low) {
    return fail(ErrorCode::kInvalidArgument, "the micro batch must be a range within 1 to {}", kMaxWays);
  }
  if (options.gpus.empty() || std::any_of(options.gpus.begin(), options.gpus.end(), outside)) {
    return fail(ErrorCode::kInvalidArgument, "numbers of GPUs are 1 to {}", kMaxWays);
  }
  if (outside(options.max_accumulation)) {
    return fail(ErrorCode::kInvalidArgument, "accumulation takes 1 to {} passes", kMaxWays);
  }
  if (options.micro_high - options.micro_low + 1 > kMaxWays / static_cast<int64_t>(options.gpus.size())) {
    return fail(ErrorCode::kInvalidArgument, "more than {} combinations; give a smaller range", kMaxWays);
  }
  return {};
}

// Smaller is better.
auto order_of(const EffectiveBatch& way, int64_t target) {
  return std::tuple(std::abs(way.effective - target), -way.micro, way.accumulation, way.gpus);
}

// Keeps the nearer of two batches on the same side of the range.
void keep_nearest(std::optional<EffectiveBatch>& kept, const EffectiveBatch& way, int64_t target) {
  if (!kept || order_of(way, target) < order_of(*kept, target)) kept = way;
}

// Every accumulation that leads into the range, and the nearest on both sides of it. False: too many.
bool add_ways(const EffectiveBatchOptions& options, EffectiveBatch way, EffectiveBatchPlan& plan) {
  const int64_t one = way.micro * way.data_parallel;
  const auto with = [&](int64_t accumulation) {
    way.accumulation = accumulation;
    way.effective = one * accumulation;
    const int64_t wanted = options.target.value_or(std::clamp(way.effective, options.low, options.high));
    way.learning_rate_factor = static_cast<double>(way.effective) / static_cast<double>(wanted);
    return way;
  };
  const int64_t first = (options.low + one - 1) / one, last = options.high / one;
  const int64_t below = std::min(first - 1, options.max_accumulation);
  if (below >= 1) keep_nearest(plan.below, with(below), options.low);
  if (last + 1 <= options.max_accumulation) keep_nearest(plan.above, with(last + 1), options.high);
  for (int64_t steps = first; steps <= std::min(last, options.max_accumulation); ++steps) {
    if (plan.exact.size() >= kMaxWays) return false;
    plan.exact.push_back(with(steps));
  }
  return true;
}

}  // namespace

Result<EffectiveBatchPlan> plan_effective_batch(const EffectiveBatchOptions& options) {
  RETURN_IF_ERROR(check_ways(options));
  const int64_t parallel = options.tensor_parallel * options.pipeline_parallel * options.context_parallel;
  EffectiveBatchPlan plan;
  std::string skipped;
  for (const int64_t gpus : options.gpus) {
    if (parallel < 1 || gpus % parallel != 0) {
      skipped += fmt::format("{}{}", skipped.empty() ? "" : ", ", gpus);
      continue;
    }
    for (int64_t micro = options.micro_low; micro <= options.micro_high; ++micro) {
      const EffectiveBatch way{.micro = micro, .gpus = gpus, .data_parallel = gpus / parallel};
      if (!add_ways(options, way, plan)) {
        return fail(ErrorCode::kInvalidArgument, "more than {} combinations; give a smaller range", kMaxWays);
      }
    }
  }
  // Without a target every batch of the range is as good as another.
  std::sort(plan.exact.begin(), plan.exact.end(), [&](const EffectiveBatch& a, const EffectiveBatch& b) {
    return options.target ? order_of(a, *options.target) < order_of(b, *options.target)
                          : std::tuple(-a.micro, a.accumulation, a.gpus) < std::tuple(-b.micro, b.accumulation, b.gpus);
  });
  if (plan.exact.empty() && !plan.below && !plan.above) {
    return fail(ErrorCode::kInvalidArgument,
                "tensor x pipeline x context parallel = {} divides none of the numbers of GPUs ({})", parallel,
                skipped);
  }
  plan.why.formulas = {"effective = micro x data_parallel x accumulation",
                       "data_parallel = gpus / (tensor x pipeline x context parallel)"};
  plan.why.terms = {
      {"range", {static_cast<double>(options.low), static_cast<double>(options.high)}, "samples a step", kGiven},
      {"micro", {static_cast<double>(options.micro_low), static_cast<double>(options.micro_high)}, "samples", kGiven},
      {"tensor x pipeline x context", Range::point(static_cast<double>(parallel)), "GPUs a model", kGiven}};
  if (!skipped.empty())
    plan.why.notes.push_back(fmt::format("{} GPUs are not a multiple of {}: left out", skipped, parallel));
  if (plan.exact.empty()) {
    plan.why.notes.emplace_back(
        "nothing lies in the range; with the nearest, scale the learning rate by the factor (SGD, Goyal et al. 2017) "
        "or by its root (Adam)");
  } else {
    plan.below.reset();
    plan.above.reset();
  }
  return plan;
}

}  // namespace millrace::plan
