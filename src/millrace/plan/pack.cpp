// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace millrace::plan {

namespace {

constexpr int64_t kMaxAmount = 1'000'000'000;  // of anything in a node: MiB, MB; products stay below 2^63
constexpr int64_t kMaxJobs = 10'000, kMaxSteps = 200'000;
constexpr std::array<int64_t Resources::*, 4> kKinds{&Resources::gpus, &Resources::cpus, &Resources::memory_mib,
                                                     &Resources::disk_mb};

bool fits(const Resources& needs, const Resources& left) {
  return std::all_of(kKinds.begin(), kKinds.end(), [&](auto kind) { return needs.*kind <= left.*kind; });
}

void take(Resources& left, const Resources& needs, int64_t sign) {
  for (const auto kind : kKinds) left.*kind -= sign * needs.*kind;
}

// Parts of a whole node, summed over what the node has.
double size_of(const Resources& needs, const Resources& node) {
  double sum = 0;
  for (const auto kind : kKinds) {
    if (node.*kind > 0) sum += static_cast<double>(needs.*kind) / static_cast<double>(node.*kind);
  }
  return sum;
}

Result<PackJob> with_shares(PackJob job, const PackOptions& options) {
  Resources& needs = job.needs;
  const Resources& node = options.node;
  if (needs.gpus < 0 || needs.cpus < 0 || needs.memory_mib < 0 || needs.disk_mb < 0 || job.count < 1)
    return fail(ErrorCode::kInvalidArgument, "{}: needs are not negative", job.name);
  if (needs.gpus == 0 && needs.cpus == 0)
    return fail(ErrorCode::kInvalidArgument, "{}: it needs GPUs or CPUs", job.name);
  if (options.whole_nodes) {
    if (needs.gpus > node.gpus)
      return fail(ErrorCode::kInvalidArgument, "{}: {} GPUs are more than a node has", job.name, needs.gpus);
    return job;
  }
  for (const auto kind : {&Resources::cpus, &Resources::memory_mib, &Resources::disk_mb}) {
    if (needs.*kind == 0 && node.gpus > 0) needs.*kind = node.*kind * needs.gpus / node.gpus;
  }
  if (!fits(needs, node))
    return fail(ErrorCode::kInvalidArgument, "{}: it needs more than one empty node has", job.name);
  return job;
}

// The one-job-a-node case and the packed one share this: items are indices of jobs, largest first.
class Packer {
 public:
  Packer(const std::vector<PackJob>& jobs, const PackOptions& options) : jobs_(jobs), options_(options) {
    for (size_t i = 0; i < jobs.size(); ++i) items_.insert(items_.end(), static_cast<size_t>(jobs[i].count), i);
    std::stable_sort(items_.begin(), items_.end(), [&](size_t a, size_t b) {
      return size_of(jobs[a].needs, options.node) > size_of(jobs[b].needs, options.node);
    });
  }

  int64_t fewest() const {
    if (options_.whole_nodes) return static_cast<int64_t>(items_.size());
    int64_t fewest = 0;
    for (const auto kind : kKinds) {
      if (options_.node.*kind == 0) continue;
      int64_t sum = 0;
      for (const size_t item : items_) sum += jobs_[item].needs.*kind;
      fewest = std::max(fewest, (sum + options_.node.*kind - 1) / (options_.node.*kind));
    }
    return fewest;
  }

  std::vector<PackedNode> best_fit_decreasing() const {
    std::vector<PackedNode> nodes;
    for (const size_t item : items_) {
      PackedNode* best = nullptr;
      for (PackedNode& node : nodes) {
        if (takes(node, item) &&
            (best == nullptr || size_of(node.left, options_.node) < size_of(best->left, options_.node)))
          best = &node;
      }
      put(best == nullptr ? nodes.emplace_back(PackedNode{{}, options_.node}) : *best, item);
    }
    return nodes;
  }

  // Fewer than `nodes` if it finds such a plan; `proven` when it has looked at all of them.
  void improve(std::vector<PackedNode>& nodes, bool& proven) {
    const int64_t least = fewest();
    while (static_cast<int64_t>(nodes.size()) > least) {
      steps_ = 0;
      std::vector<PackedNode> fewer(nodes.size() - 1, PackedNode{{}, options_.node});
      const bool found = place(0, fewer);
      if (!found) {
        proven = steps_ < kMaxSteps;
        return;
      }
      nodes = std::move(fewer);
    }
    proven = true;
  }

 private:
  bool takes(const PackedNode& node, size_t item) const {
    return options_.whole_nodes ? node.jobs.empty() : fits(jobs_[item].needs, node.left);
  }
  void put(PackedNode& node, size_t item) const {
    node.jobs.push_back(item);
    take(node.left, jobs_[item].needs, 1);
  }

  bool place(size_t next, std::vector<PackedNode>& nodes) {
    if (next == items_.size()) return true;
    if (++steps_ >= kMaxSteps) return false;
    const size_t item = items_[next];
    std::vector<Resources> tried;  // nodes with the same room are the same
    for (PackedNode& node : nodes) {
      if (!takes(node, item) || std::find(tried.begin(), tried.end(), node.left) != tried.end()) continue;
      tried.push_back(node.left);
      put(node, item);
      if (place(next + 1, nodes)) return true;
      node.jobs.pop_back();
      take(node.left, jobs_[item].needs, -1);
    }
    return false;
  }

  const std::vector<PackJob>& jobs_;
  const PackOptions& options_;
  std::vector<size_t> items_;
  int64_t steps_ = 0;
};

std::string sbatch_flags(const Resources& needs, const PackOptions& options) {
  std::string flags = "--nodes=1 --ntasks-per-node=1";
  if (needs.gpus > 0)
    flags += fmt::format(" --gpus-per-node={}{}", options.gpu_type.empty() ? "" : options.gpu_type + ":", needs.gpus);
  if (options.whole_nodes) return flags + " --exclusive --mem=0";
  if (needs.cpus > 0) flags += fmt::format(" --cpus-per-task={}", needs.cpus);
  if (needs.memory_mib > 0) flags += fmt::format(" --mem={}M", needs.memory_mib);
  return flags;
}

void explain_pack(const PackOptions& options, PackPlan& plan) {
  Why& why = plan.why;
  why.formulas = {"share of CPUs, memory, disk = what the node has x GPUs of the job / GPUs of the node",
                  "nodes >= sum of needs / what a node has, rounded up, for each resource"};
  const auto number = [](int64_t value) { return Range::point(static_cast<double>(value)); };
  why.terms = {{"GPUs", number(options.node.gpus), "a node", kGiven},
               {"CPUs", number(options.node.cpus), "a node", kGiven},
               {"memory", number(options.node.memory_mib), "MiB a node", kGiven},
               {"disk", number(options.node.disk_mb), "MB a node", kGiven}};
  if (options.whole_nodes) {
    why.notes.emplace_back(
        "whole nodes: with --exclusive, JobExclusiveAllocation or OverSubscribe=EXCLUSIVE every job has its node for "
        "itself");
    return;
  }
  why.notes.emplace_back(
      "what defeats sharing: --exclusive, JobExclusiveAllocation, a partition with OverSubscribe=EXCLUSIVE, "
      "select/linear; "
      "and a job without --mem where memory is scheduled (CR_*_Memory): it takes all of it");
  if (options.node.disk_mb > 0) {
    why.notes.emplace_back(
        "Slurm counts no local disk: --tmp only asks for nodes whose TmpDisk is large enough; give each job a folder "
        "and a size of its own");
  }
  why.notes.emplace_back("CUDA_VISIBLE_DEVICES set by hand, or one fixed MASTER_PORT, makes jobs of one node collide");
  for (const PackedNode& node : plan.nodes) {
    if (node.left.gpus > 0 && (node.left.cpus == 0 || (options.node.memory_mib > 0 && node.left.memory_mib == 0))) {
      why.notes.push_back(
          fmt::format("{} GPUs of a node are stranded: its CPUs or its memory are used up", node.left.gpus));
    }
  }
}

}  // namespace

Result<PackPlan> plan_pack(const PackOptions& options) {
  for (const auto kind : kKinds) {
    if (options.node.*kind > kMaxAmount) return fail(ErrorCode::kInvalidArgument, "a node of {} is none", kMaxAmount);
  }
  if (options.node.gpus < 0 || options.node.cpus < 1 || options.nodes < 0)
    return fail(ErrorCode::kInvalidArgument, "a node has 1 CPU or more");
  if (options.jobs.empty()) return fail(ErrorCode::kInvalidArgument, "no jobs are given");
  PackPlan plan;
  int64_t count = 0;
  for (const PackJob& job : options.jobs) {
    ASSIGN_OR_RETURN(PackJob filled, with_shares(job, options));
    count += filled.count;
    if (job.count > kMaxJobs || count > kMaxJobs)
      return fail(ErrorCode::kInvalidArgument, "more than {} jobs", kMaxJobs);
    plan.sbatch.push_back(sbatch_flags(filled.needs, options));
    plan.jobs.push_back(std::move(filled));
  }
  Packer packer(plan.jobs, options);
  plan.fewest = packer.fewest();
  plan.nodes = packer.best_fit_decreasing();
  packer.improve(plan.nodes, plan.proven);
  plan.needed = static_cast<int64_t>(plan.nodes.size());
  if (options.nodes > 0 && static_cast<int64_t>(plan.nodes.size()) > options.nodes) {
    // The fullest nodes first.
    std::stable_sort(plan.nodes.begin(), plan.nodes.end(), [&](const PackedNode& a, const PackedNode& b) {
      return size_of(a.left, options.node) < size_of(b.left, options.node);
    });
    for (auto node = plan.nodes.begin() + options.nodes; node != plan.nodes.end(); ++node)
      plan.unplaced.insert(plan.unplaced.end(), node->jobs.begin(), node->jobs.end());
    plan.nodes.resize(static_cast<size_t>(options.nodes));
  }
  explain_pack(options, plan);
  if (!plan.unplaced.empty())
    plan.why.notes.push_back(fmt::format("{} jobs must wait for others to end", plan.unplaced.size()));
  return plan;
}

}  // namespace millrace::plan
