// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which processors are near a rank of a job, so that its threads, and the memory that they touch first, can be on the
// NUMA node that its GPU hangs on. Reads /proc and /sys below a root, which tests replace. Thread-safe.

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

// Those of `allowed` that are on the NUMA node of the rank's GPU: the one that it sees alone, else the one with its
// number. Without a GPU whose node is known, on its share of the nodes that `allowed` touches. Empty when nothing is
// gained: one node, a rank that has all nodes to itself, or none of `allowed` on that node.
std::vector<int> near_cpus(const LocalRank& rank, std::span<const int> allowed,
                           const std::filesystem::path& root = "/");

// Keeps the calling thread on these processors; with none, or where the system refuses, it stays as it is.
void stay_on(std::span<const int> cpus);

}  // namespace millrace
