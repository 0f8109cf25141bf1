// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace millrace::plan {

namespace {

constexpr double kLimitMargin = 1.2;  // of --time over the upper end of the estimate
constexpr double kUnknown = std::numeric_limits<double>::infinity();

// Powers of two within a node, then powers of two of nodes, and all there are.
std::vector<int64_t> gpu_counts(const AdviceJob& job, const Partition& partition) {
  if (!job.gpus.empty()) return job.gpus;
  std::set<int64_t> counts;
  for (int64_t n = 1; n <= partition.gpus_per_node; n *= 2) counts.insert(n);
  counts.insert(partition.gpus_per_node);
  for (int64_t n = 1; n <= partition.nodes(); n *= 2) counts.insert(n * partition.gpus_per_node);
  counts.insert(partition.gpus());
  const int64_t most = job.max_gpus > 0 ? job.max_gpus : partition.gpus();
  std::erase_if(counts, [&](int64_t count) { return count > most || count % job.eta.model_parallel != 0; });
  return {counts.begin(), counts.end()};
}

// Steps are counted at this batch: with a smaller one it takes more of them to see as many samples.
int64_t reference_batch(const AdviceJob& job) {
  return job.effective_target.value_or(job.effective_high);
}

// "2-03:10:00", whole ten minutes.
std::string time_limit(double seconds) {
  const auto minutes = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9) / 600)) * 10;
  const int64_t days = minutes / 1440;
  return fmt::format("{}{:02}:{:02}:00", days > 0 ? fmt::format("{}-", days) : "", minutes / 60 % 24, minutes % 60);
}

std::string sbatch_command(const AdviceJob& job, const Partition& partition, const Placement& where, double time_s) {
  std::string command =
      fmt::format("sbatch --partition={} --nodes={} --ntasks-per-node=1 --gpus-per-node={}{}", partition.name,
                  where.nodes, partition.gpu_type.empty() ? "" : partition.gpu_type + ":", where.gpus_per_node);
  if (!partition.constraint.empty()) command += fmt::format(" --constraint={}", partition.constraint);
  if (partition.cpus_per_node > 0)
    command += fmt::format(" --cpus-per-task={}", std::max<int64_t>(1, partition.cpus_per_node * where.gpus_per_node /
                                                                           partition.gpus_per_node));
  if (partition.memory_mib > 0)
    command += fmt::format(" --mem={}M", partition.memory_mib * where.gpus_per_node / partition.gpus_per_node);
  return command + fmt::format(" --time={} {}", time_limit(time_s), job.script);
}

// The micro batch of the recommended level; the largest that fits where that is none.
Result<int64_t> micro_batch(const MemoryModel& memory, const Gpu& gpu) {
  ASSIGN_OR_RETURN(const BatchPlan plan, plan_batch(memory, gpu.memory_mib.value / 1024));
  const int64_t recommended = plan.levels[1].batch_low;
  return recommended > 0 ? recommended : plan.max_low;
}

// In seconds from now; the wait where it is known.
Range finish_s(const Advice& advice) {
  return advice.wait_s.value_or(Range{0, kUnknown}) + advice.eta.total_s;
}

void add_wait(const Partition& partition, Advice& advice) {
  const auto free_after = free_after_s(partition, advice.where);
  advice.starts_now = free_after == 0.0 && partition.pending_jobs == 0;
  if (advice.starts_now) {
    advice.wait_s = Range::point(0);
  } else if (free_after && partition.pending_jobs == 0) {
    advice.wait_s = Range{0, *free_after};
  }
  if (free_after == 0.0 && partition.pending_jobs > 0)
    advice.notes.emplace_back("GPUs are free, but jobs wait in this queue: a short job may slip in before them");
}

void add_limits(const Partition& partition, Advice& advice, double& time_s) {
  time_s = advice.eta.total_s.high * kLimitMargin;
  if (!partition.max_time_s || time_s <= *partition.max_time_s) return;
  advice.notes.push_back(
      fmt::format("longer than the partition's limit of {:.0f} h: about {:.0f} runs, each continued from a checkpoint",
                  *partition.max_time_s / 3600, std::ceil(advice.eta.total_s.high / *partition.max_time_s)));
  time_s = *partition.max_time_s;
}

// nullopt, with a reason in `passed_over`, when the job cannot run this way.
std::optional<Advice> try_one(const AdviceJob& job, const Partition& partition, const Gpu& gpu, int64_t micro,
                              int64_t gpus, std::string& skipped, Status& status) {
  const auto where = placement(partition, gpus);
  if (!where) return std::nullopt;
  const auto batches = plan_effective_batch({.low = job.effective_low,
                                             .high = job.effective_high,
                                             .target = job.effective_target,
                                             .gpus = {gpus},
                                             .micro_low = 1,
                                             .micro_high = std::min(micro, job.effective_high),
                                             .max_accumulation = 1024,
                                             .tensor_parallel = job.eta.model_parallel});
  if (!batches || batches->exact.empty()) {
    skipped += fmt::format("{}{}", skipped.empty() ? "" : ", ", gpus);
    return std::nullopt;
  }
  Advice advice{.partition = partition.name,
                .gpu = gpu,
                .where = *where,
                .batch = batches->exact[0],
                .state = partition.state_text()};
  EtaOptions eta = job.eta;
  eta.gpu = gpu;
  eta.gpus = gpus;
  eta.micro = advice.batch.micro;
  eta.accumulation = advice.batch.accumulation;
  eta.steps = std::ceil(job.eta.steps * static_cast<double>(reference_batch(job)) /
                        static_cast<double>(advice.batch.effective));
  eta.usd_per_gpu_hour = partition.usd_per_gpu_hour;
  if (partition.whole_nodes && partition.usd_per_gpu_hour) {
    // The price is for the whole node.
    eta.usd_per_gpu_hour = *partition.usd_per_gpu_hour * static_cast<double>(partition.gpus_per_node) /
                           static_cast<double>(where->gpus_per_node);
  }
  auto plan = plan_eta(eta);
  if (!plan) {
    status = tl::unexpected(std::move(plan).error());
    return std::nullopt;
  }
  advice.eta = *std::move(plan);
  add_wait(partition, advice);
  double time_s = 0;
  add_limits(partition, advice, time_s);
  advice.sbatch = sbatch_command(job, partition, *where, time_s);
  if (!gpu.bf16) advice.notes.push_back(fmt::format("the {} has no bf16", gpu.name));
  if (partition.among_others)
    advice.notes.emplace_back(
        "the partition has GPUs of other kinds too, and their gres no types: keep to these nodes with --nodelist or "
        "--exclude");
  if (partition.preempted)
    advice.notes.emplace_back("jobs here are preempted: save often, and let --requeue continue the run");
  return advice;
}

Status try_partition(const AdviceJob& job, const Partition& partition, AdvicePlan& plan) {
  const auto gpu = find_gpu(partition.gpu);
  if (!gpu) {
    plan.why.notes.push_back(
        fmt::format("{}: left out, the catalogue does not know its GPU '{}' (--gpu-of NAME=GPU says it)",
                    partition.name, partition.gpu));
    return {};
  }
  ASSIGN_OR_RETURN(const int64_t micro, micro_batch(job.memory, *gpu));
  if (micro == 0) {
    plan.why.notes.push_back(fmt::format("{}: left out, not even one sample is sure to fit {:.1f} GiB of the {}",
                                         partition.name, gpu->memory_mib.value / 1024, gpu->name));
    return {};
  }
  std::string without_batch;
  for (const int64_t gpus : gpu_counts(job, partition)) {
    Status status;
    auto advice = try_one(job, partition, *gpu, micro, gpus, without_batch, status);
    RETURN_IF_ERROR(status);
    if (advice) plan.all.push_back(*std::move(advice));
  }
  if (!without_batch.empty()) {
    plan.why.notes.push_back(fmt::format("{}: no effective batch of {} to {} with {} GPUs and micro batches up to {}",
                                         partition.name, job.effective_low, job.effective_high, without_batch, micro));
  }
  return {};
}

constexpr double kRounding = 1e-9;
// Estimates that differ by less are a tie: whole steps alone make costs differ that are the same.
constexpr double kCostTie = 0.01;

bool is_faster(const Advice& a, const Advice& b) {
  return std::pair(finish_s(a).high, a.eta.total_s.high) < std::pair(finish_s(b).high, b.eta.total_s.high);
}

// The fastest of those whose `key` is within `tie` of the least.
template <class Key>
std::optional<size_t> least(const std::vector<Advice>& all, double tie, Key key) {
  double lowest = kUnknown;
  for (const Advice& each : all) lowest = std::min(lowest, key(each).value_or(kUnknown));
  std::optional<size_t> best;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::optional<double> value = key(all[i]);
    if (value && *value <= lowest * (1 + tie) && (!best || is_faster(all[i], all[*best]))) best = i;
  }
  return best;
}

}  // namespace

Result<AdvicePlan> advise(const AdviceJob& job, const std::vector<Partition>& partitions) {
  AdvicePlan plan;
  for (const Partition& partition : partitions) RETURN_IF_ERROR(try_partition(job, partition, plan));
  if (plan.all.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the job fits none of the partitions{}{}",
                plan.why.notes.empty() ? "" : ": ", plan.why.notes.empty() ? "" : plan.why.notes[0]);
  }
  const auto total = [](const Advice& advice) { return advice.eta.total_s.high; };
  plan.start_now = least(plan.all, kRounding, [&](const Advice& advice) {
    return advice.starts_now ? std::optional(total(advice)) : std::nullopt;
  });
  plan.fastest = least(plan.all, kRounding, [&](const Advice& advice) {
    return advice.wait_s ? std::optional(finish_s(advice).high) : std::nullopt;
  });
  if (!plan.fastest) {
    plan.fastest = least(plan.all, kRounding, [&](const Advice& advice) { return std::optional(total(advice)); });
    plan.why.notes.emplace_back("no wait is known: fastest is by the running time alone");
  }
  plan.priced =
      std::any_of(plan.all.begin(), plan.all.end(), [](const Advice& advice) { return advice.eta.usd.has_value(); });
  plan.cheapest = least(plan.all, kCostTie, [&](const Advice& advice) -> std::optional<double> {
    if (!plan.priced) return advice.eta.gpu_hours.high;
    return advice.eta.usd ? std::optional(advice.eta.usd->high) : std::nullopt;
  });
  if (!plan.priced) plan.why.notes.emplace_back("no prices are given: cheapest is by GPU-hours, whatever the GPU");
  if (!plan.start_now) plan.why.notes.emplace_back("nothing starts at once: the GPUs are taken, or jobs wait for them");
  plan.why.notes.push_back(
      fmt::format("steps are counted at {} samples a step: smaller batches take more steps to see the same data",
                  reference_batch(job)));
  // One of them explains all: they differ in the numbers only.
  const Advice& shown = plan.all[plan.fastest.value_or(0)];
  Why why = job.memory.why;
  why.add(shown.eta.why);
  std::set<std::string> known;
  for (const Term& term : why.terms) known.insert(term.name);
  for (const Advice& advice : plan.all) {
    for (Term& term : terms_of(advice.gpu)) {
      if (known.insert(term.name).second) why.terms.push_back(std::move(term));
    }
  }
  why.formulas.insert(why.formulas.begin(),
                      "start now = free GPUs and nobody waiting; fastest = least wait + time, upper ends; cheapest = "
                      "least cost, upper end; costs within 1 % are a tie, which the faster wins");
  why.formulas.insert(why.formulas.begin() + 1, "wait <= limits of the jobs that run on the nodes that are needed");
  why.notes.insert(why.notes.begin(), plan.why.notes.begin(), plan.why.notes.end());
  plan.why = std::move(why);
  return plan;
}

}  // namespace millrace::plan
