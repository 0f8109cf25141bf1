// SPDX-License-Identifier: Apache-2.0
#pragma once

// The partitions of a cluster, from Slurm or a file. Plain values and pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::plan {

// GPUs that a running job frees no later than at its time limit.
struct Release {
  size_t node = 0;  // index of Partition::free_gpus
  double after_s = 0;
  int64_t gpus = 0;
};

// Nodes of one kind. A Slurm partition that mixes kinds becomes several of these.
struct Partition {
  std::string name;
  std::string gpu;            // its name on the cluster; find_gpu() may know it
  std::string gpu_type;       // type in gres.conf, for --gpus-per-node; empty: untyped
  std::string constraint;     // a feature that only these nodes of the partition have, for --constraint; empty: none
  bool among_others = false;  // the partition has other kinds of GPUs, and neither type nor constraint selects these
  int64_t gpus_per_node = 0;
  int64_t cpus_per_node = 0;
  int64_t memory_mib = 0;          // per node; 0: unknown
  std::vector<int64_t> free_gpus;  // by node that is not down
  std::vector<Release> releases;
  int64_t pending_jobs = 0;  // jobs that wait for GPUs here
  std::optional<double> max_time_s;
  std::optional<double> usd_per_gpu_hour;
  bool whole_nodes = false;  // jobs do not share nodes
  bool preempted = false;    // jobs may be preempted

  int64_t nodes() const { return static_cast<int64_t>(free_gpus.size()); }
  int64_t gpus() const { return nodes() * gpus_per_node; }
  int64_t gpus_free() const;
  std::string state_text() const;  // "12 of 32 GPUs free, 3 jobs wait"
};

// Parses {"partitions": [{"name": "gpul40s", "gpu": "l40s", "gpu_type": "l40s", "nodes": 3, "gpus_per_node": 8,
// "cpus_per_node": 96, "memory_mib": 768000, "free_gpus": [0, 4, 8], "pending_jobs": 2, "max_hours": 72,
// "usd_per_gpu_hour": 1.2, "releases": [{"node": 0, "after_hours": 5, "gpus": 8}], "whole_nodes": false, "preempted":
// false}]}. Only name, gpu, nodes (or free_gpus) and gpus_per_node are required. Without free_gpus, all GPUs are free.
// Error: invalid_argument, with the entry.
[[nodiscard]] Result<std::vector<Partition>> parse_partitions(std::string_view json);

// The number of nodes of a job, and its GPUs on each node.
struct Placement {
  int64_t nodes = 0;
  int64_t gpus_per_node = 0;
};
// Returns the placement of a job with `gpus`; nullopt if no such job fits the partition. Jobs on several nodes take
// whole nodes.
std::optional<Placement> placement(const Partition& partition, int64_t gpus);

// Returns the latest start of such a job by the time limits of running jobs: 0 is now. nullopt: unknown.
std::optional<double> free_after_s(const Partition& partition, const Placement& wanted);

}  // namespace millrace::plan
