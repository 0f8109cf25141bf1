// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the processors near a rank of a job. Its threads, and the memory that they touch first, can then be on the
// NUMA node of its GPU. Reads /proc and /sys below a root, which tests replace. Thread-safe.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// A rank and the number of ranks on its node.
struct LocalRank {
  int rank = 0;
  int ranks = 1;
  std::optional<std::string> visible_gpus;  // CUDA_VISIBLE_DEVICES; nothing: all
};

// Reads LOCAL_RANK or SLURM_LOCALID, local_ranks() and CUDA_VISIBLE_DEVICES.
LocalRank local_rank();

// Returns the affinity mask of the calling thread, ascending; empty when it cannot be read.
std::vector<int> allowed_cpus();

// Returns the CPUs of `allowed` on the NUMA node of the rank's GPU. That is its only visible GPU, or else the GPU with
// the rank's number. If no GPU's node is known, returns the CPUs on the rank's share of the nodes of `allowed`. Empty
// when binding gains nothing: there is one node, one rank uses all nodes, or `allowed` has no CPU on that node.
std::vector<int> near_cpus(const LocalRank& rank, std::span<const int> allowed,
                           const std::filesystem::path& root = "/");

// Binds the calling thread to these CPUs. Does nothing when `cpus` is empty or the system refuses.
void stay_on(std::span<const int> cpus);

}  // namespace millrace
