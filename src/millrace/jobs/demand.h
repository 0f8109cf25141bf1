// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds what a job requires of each node, and which nodes could hold it. Pure functions; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/slurm/details.h"
#include "millrace/slurm/options.h"
#include "millrace/slurm/slurm.h"

namespace millrace::jobs {

// The resources that each node must have for the job, as far as its request tells; 0: not requested.
struct Demand {
  int64_t nodes = 1, cpus = 0, memory_mib = 0, gpus = 0;
  std::string gpu_type;
  int64_t total_gpus = 0;  // from --gpus without --nodes: on any number of nodes
};

// Returns the demand of a job that Slurm knows.
Demand demand_of(const slurm::JobDetails& job);
// Returns the demand of a job that is not submitted yet.
Demand demand_of(const slurm::Options& asked);

// Whether the demand fits the node: all of its resources, or only those that are free now.
bool fits(const slurm::Node& node, const Demand& demand, bool free_only);
// Returns the number of the node's GPUs of the demanded type.
int64_t gpus_of(const slurm::Node& node, const Demand& demand, bool free_only);
// Whether the node is in one of `partitions`, names joined by commas.
bool is_in(const slurm::Node& node, std::string_view partitions);

// Returns a text such as "2 nodes of 8 CPUs, 64000 MiB, 8 h200 GPUs".
std::string demand_text(const Demand& demand);

// Returns the whole number at the front of the text; 0 if there is none.
int64_t front_number(std::string_view text);

}  // namespace millrace::jobs
