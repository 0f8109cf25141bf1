// SPDX-License-Identifier: Apache-2.0
#pragma once

// The partitions of a cluster, from a Slurm or a file. Plain values and pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::plan {

// GPUs that a running job gives back when its limit is reached, at the latest.
struct Release {
  size_t node = 0;  // index of Partition::free_gpus
  double after_s = 0;
  int64_t gpus = 0;
};

// Nodes of one kind; a partition of a Slurm that mixes kinds is several of these.
struct Partition {
  std::string name;
  std::string gpu;            // as it is called there; find_gpu() may know it
  std::string gpu_type;       // of gres.conf, for --gpus-per-node; empty: untyped
  std::string constraint;     // a feature that these nodes alone of the partition have, for --constraint; empty: none
  bool among_others = false;  // the partition has GPUs of other kinds, and neither type nor constraint picks these
  int64_t gpus_per_node = 0;
  int64_t cpus_per_node = 0;
  int64_t memory_mib = 0;          // a node; 0: unknown
  std::vector<int64_t> free_gpus;  // of each node that is not down
  std::vector<Release> releases;
  int64_t pending_jobs = 0;  // that wait for GPUs here
  std::optional<double> max_time_s;
  std::optional<double> usd_per_gpu_hour;
  bool whole_nodes = false;  // jobs do not share nodes
  bool preempted = false;    // jobs may be preempted

  int64_t nodes() const { return static_cast<int64_t>(free_gpus.size()); }
  int64_t gpus() const { return nodes() * gpus_per_node; }
  int64_t gpus_free() const;
  std::string state_text() const;  // "12 of 32 GPUs free, 3 jobs wait"
};

// {"partitions": [{"name": "gpul40s", "gpu": "l40s", "gpu_type": "l40s", "nodes": 3, "gpus_per_node": 8,
// "cpus_per_node": 96, "memory_mib": 768000, "free_gpus": [0, 4, 8], "pending_jobs": 2, "max_hours": 72,
// "usd_per_gpu_hour": 1.2, "releases": [{"node": 0, "after_hours": 5, "gpus": 8}], "whole_nodes": false, "preempted":
// false}]}; only name, gpu, nodes (or free_gpus) and gpus_per_node are needed, and without free_gpus all GPUs are free.
// Error: invalid_argument, with the entry.
[[nodiscard]] Result<std::vector<Partition>> parse_partitions(std::string_view json);

// The nodes of a job with `gpus`, and its GPUs on each; nullopt when no such job fits the partition. Jobs of more than
// a node take whole nodes.
struct Placement {
  int64_t nodes = 0;
  int64_t gpus_per_node = 0;
};
std::optional<Placement> placement(const Partition& partition, int64_t gpus);

// The latest start of such a job by the time limits of running jobs: 0 is now. nullopt: unknown.
std::optional<double> free_after_s(const Partition& partition, const Placement& wanted);

}  // namespace millrace::plan
