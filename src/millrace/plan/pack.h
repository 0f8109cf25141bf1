// SPDX-License-Identifier: Apache-2.0
#pragma once

// Packs jobs onto shared nodes by GPUs, CPUs, memory and local disk together. Best-fit decreasing, then branch and
// bound for fewer nodes; small cases are exact. Pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct Resources {
  int64_t gpus = 0;
  int64_t cpus = 0;
  int64_t memory_mib = 0;
  int64_t disk_mb = 0;  // local; decimal, as disks are sold

  bool operator==(const Resources&) const = default;
};

struct PackJob {
  std::string name;
  Resources needs;    // 0 CPUs, memory or disk: a share in proportion to the job's GPUs
  int64_t count = 1;  // number of such jobs
};

struct PackOptions {
  Resources node;
  std::string gpu_type;  // GPU type in the sbatch flags; empty: no type
  int64_t nodes = 0;     // available; 0: as many as needed
  std::vector<PackJob> jobs;
  bool whole_nodes = false;  // --exclusive, JobExclusiveAllocation, OverSubscribe=EXCLUSIVE: one job per node
};

struct PackedNode {
  std::vector<size_t> jobs;  // indices of options.jobs, one for each that runs here
  Resources left;
};

struct PackPlan {
  std::vector<PackJob> jobs;        // with shares filled in
  std::vector<std::string> sbatch;  // sbatch flags of each job
  std::vector<PackedNode> nodes;
  std::vector<size_t> unplaced;  // one index for each job that found no room
  int64_t needed = 0;            // nodes that would hold all jobs
  int64_t fewest = 0;            // lower bound: every plan needs at least this many nodes
  bool proven = false;           // true: no plan needs fewer than `needed`
  Why why;
};
// Plans the packing. Errors: invalid_argument (no node, a job without needs, a job that fits no empty node, more than
// 10,000 jobs).
[[nodiscard]] Result<PackPlan> plan_pack(const PackOptions& options);

}  // namespace millrace::plan
