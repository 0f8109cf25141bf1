// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace millrace::plan {

namespace {

// 54 days of 16,384 GPUs with 419 unexpected interruptions.
constexpr double kGpuHoursAFailure = 54.0 * 24 * 16384 / 419;
constexpr const char* kFailures =
    "54 days x 16,384 GPUs / 419 interruptions, Llama 3 report (2024), unconfirmed for other clusters";
constexpr double kMaxFit = 1e12;

Result<double> bytes_of_one(const CheckpointOptions& options, Why& why) {
  for (const double value : {options.bytes, options.parameters, options.quota_bytes, options.used_bytes,
                             options.bandwidth_bytes_per_s, options.stall_s, options.mtbf_s}) {
    if (!(value >= 0)) return fail(ErrorCode::kInvalidArgument, "sizes and times are 0 or more");
  }
  if (options.models < 1 || options.keep_last < 0 || options.gpus < 0)
    return fail(ErrorCode::kInvalidArgument, "there is 1 model or more, and counts are 0 or more");
  if (options.bytes > 0) {
    why.terms.push_back({"size", Range::point(options.bytes / 1e9), "GB", kGiven});
    return options.bytes;
  }
  if (options.parameters == 0)
    return fail(ErrorCode::kInvalidArgument, "how large is it? give --parameters, or --size");
  const auto kind = std::find_if(checkpoint_kinds().begin(), checkpoint_kinds().end(),
                                 [&](const CheckpointKind& each) { return each.name == options.kind; });
  if (kind == checkpoint_kinds().end())
    return fail(ErrorCode::kInvalidArgument, "no kind of checkpoint is called '{}'", options.kind);
  why.formulas.emplace_back("size = parameters x bytes a parameter");
  why.terms.push_back({"parameters", Range::point(options.parameters), "", kGiven});
  why.terms.push_back(
      {"bytes a parameter", Range::point(kind->bytes_a_parameter), "B", fmt::format("{}: {}", kind->name, kind->what)});
  return options.parameters * kind->bytes_a_parameter;
}

void plan_space(const CheckpointOptions& options, CheckpointPlan& plan) {
  const double all = plan.bytes * static_cast<double>(options.models);
  Why& why = plan.why;
  if (options.models > 1)
    why.terms.push_back({"models", Range::point(static_cast<double>(options.models)), "", kGiven});
  if (options.quota_bytes > 0) {
    const double left = std::max(0.0, options.quota_bytes - options.used_bytes);
    plan.fit = static_cast<int64_t>(std::min(kMaxFit, std::floor(left / all + 1e-9)));
    plan.keep_last_safe = std::max<int64_t>(0, *plan.fit - 1);
    why.formulas.emplace_back("fit = floor((quota - used) / (size x models)); keep-last-k needs k + 1");
    why.terms.push_back({"quota", Range::point(options.quota_bytes / 1e9), "GB", kGiven});
    why.terms.push_back({"used", Range::point(options.used_bytes / 1e9), "GB", kGiven});
  }
  if (options.keep_last == 0) return;
  plan.keep_bytes = all * static_cast<double>(options.keep_last + 1);
  why.formulas.emplace_back("space = (keep + 1) x size x models: the new one is whole before the oldest goes");
  why.terms.push_back({"keep", Range::point(static_cast<double>(options.keep_last)), "", kGiven});
  if (plan.keep_last_safe && *plan.keep_last_safe < options.keep_last) {
    why.notes.push_back(
        fmt::format("keeping {} needs room for {}, and {} fit: keep {}, save weights only (--kind weights), or move "
                    "old ones to object storage",
                    options.keep_last, options.keep_last + 1, *plan.fit, *plan.keep_last_safe));
  }
}

void plan_interval(const CheckpointOptions& options, CheckpointPlan& plan) {
  Why& why = plan.why;
  if (options.mtbf_s > 0) {
    plan.mtbf_s = options.mtbf_s;
    why.terms.push_back({"mtbf", Range::point(options.mtbf_s / 3600), "h", kGiven});
  } else if (options.gpus > 0) {
    plan.mtbf_s = kGpuHoursAFailure * 3600 / static_cast<double>(options.gpus);
    why.formulas.emplace_back("mtbf = GPU-hours a failure / gpus");
    why.terms.push_back({"gpus", Range::point(static_cast<double>(options.gpus)), "", kGiven});
    why.terms.push_back({"GPU-hours a failure", Range::point(kGpuHoursAFailure), "h", kFailures});
  }
  const double cost_s = options.stall_s > 0 ? options.stall_s : plan.write_all_s.value_or(0);
  if (!plan.mtbf_s || cost_s <= 0) return;
  plan.young_s = young_interval_s(cost_s, *plan.mtbf_s);
  plan.daly_s = daly_interval_s(cost_s, *plan.mtbf_s);
  // A failure costs half an interval of work on average.
  plan.overhead = std::min(1.0, cost_s / *plan.daly_s + *plan.daly_s / (2 * *plan.mtbf_s));
  why.formulas.emplace_back(
      "Young = sqrt(2 x cost x mtbf); Daly = Young x (1 + sqrt(cost / (2 mtbf)) / 3 + cost / (18 mtbf)) - cost");
  why.formulas.emplace_back("lost = cost / interval + interval / (2 x mtbf)");
  why.terms.push_back(
      {"cost", Range::point(cost_s), "s", options.stall_s > 0 ? kGiven : "the write time: training waits for it"});
  why.terms.push_back({"Young, Daly", Range::point(2), "", "Young 1974 (CACM 17:9); Daly 2006 (FGCS 22:3)"});
  if (options.stall_s == 0)
    why.notes.emplace_back(
        "asynchronous checkpoints stall training for the snapshot only: give that time with --stall");
}

}  // namespace

std::span<const CheckpointKind> checkpoint_kinds() {
  static constexpr std::array<CheckpointKind, 4> kKinds{{
      {"resumable", "bf16 weights 2, FP32 master copy 4, two moments 8", 14},
      {"fp32-resumable", "FP32 weights 4, two moments 8", 12},
      {"weights", "bf16 weights", 2},
      {"fp32-weights", "FP32 weights", 4},
  }};
  return kKinds;
}

double young_interval_s(double cost_s, double mtbf_s) {
  return std::sqrt(2 * cost_s * mtbf_s);
}

double daly_interval_s(double cost_s, double mtbf_s) {
  if (cost_s >= 2 * mtbf_s) return mtbf_s;
  const double ratio = cost_s / (2 * mtbf_s);
  return young_interval_s(cost_s, mtbf_s) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - cost_s;
}

Result<CheckpointPlan> plan_checkpoints(const CheckpointOptions& options) {
  CheckpointPlan plan;
  ASSIGN_OR_RETURN(plan.bytes, bytes_of_one(options, plan.why));
  plan_space(options, plan);
  if (options.bandwidth_bytes_per_s > 0) {
    plan.write_s = plan.bytes / options.bandwidth_bytes_per_s;
    plan.write_all_s = *plan.write_s * static_cast<double>(options.models);
    plan.why.formulas.emplace_back("write = size / bandwidth; all models at once share it");
    plan.why.terms.push_back({"bandwidth", Range::point(options.bandwidth_bytes_per_s / 1e9), "GB/s", kGiven});
  }
  plan_interval(options, plan);
  return plan;
}

}  // namespace millrace::plan
