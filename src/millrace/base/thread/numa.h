// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which processors are near a rank of a job, so that its threads, and the memory that they touch first, can be on the
// NUMA node to which its GPU is attached. Reads /proc and /sys below a root, which tests replace. Thread-safe.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// A rank among those of its node.
struct LocalRank {
  int rank = 0;
  int ranks = 1;
  std::optional<std::string> visible_gpus;  // CUDA_VISIBLE_DEVICES; nothing: all
};

// From LOCAL_RANK or SLURM_LOCALID, local_ranks() and CUDA_VISIBLE_DEVICES.
LocalRank local_rank();

// The affinity mask of the calling thread, ascending; empty when it cannot be read.
std::vector<int> allowed_cpus();

// The CPUs of `allowed` on the NUMA node of the rank's GPU, which is its only visible GPU, or else the GPU with the
// rank's number. If no GPU's node is known: the CPUs on the rank's share of the nodes of `allowed`. Empty when binding
// gains nothing: one node, one rank on all nodes, or no CPU of `allowed` on that node.
std::vector<int> near_cpus(const LocalRank& rank, std::span<const int> allowed,
                           const std::filesystem::path& root = "/");

// Binds the calling thread to these CPUs. Does nothing when `cpus` is empty or the system refuses.
void stay_on(std::span<const int> cpus);

}  // namespace millrace
