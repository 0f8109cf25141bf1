// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a job asks of each node, and which nodes could hold it. Pure functions; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/slurm/details.h"
#include "millrace/slurm/options.h"
#include "millrace/slurm/slurm.h"

namespace millrace::jobs {

// What each node must have for the job, as far as its request tells; 0: nothing is asked for.
struct Demand {
  int64_t nodes = 1, cpus = 0, memory_mib = 0, gpus = 0;
  std::string gpu_type;
  int64_t total_gpus = 0;  // of --gpus without --nodes: on any number of nodes
};

// The demand of a job that Slurm knows.
Demand demand_of(const slurm::JobDetails& job);
// The demand of a job that is not submitted yet.
Demand demand_of(const slurm::Options& asked);

// Whether the node's share fits: into what the node has, or into what is free there now.
bool fits(const slurm::Node& node, const Demand& demand, bool free_only);
// GPUs of the demand's type.
int64_t gpus_of(const slurm::Node& node, const Demand& demand, bool free_only);
// `partitions`: names joined by commas.
bool is_in(const slurm::Node& node, std::string_view partitions);

// "2 nodes of 8 CPUs, 64000 MiB, 8 h200 GPUs"
std::string demand_text(const Demand& demand);

// A whole number at the front of the text; 0 without one.
int64_t front_number(std::string_view text);

}  // namespace millrace::jobs
