// SPDX-License-Identifier: Apache-2.0
#pragma once

// Partitions for `millrace plan`, from a file or from the Slurm that this machine belongs to.

#include <string>
#include <vector>

#include "millrace/cli/plan_flags.h"
#include "millrace/plan/partitions.h"
#include "millrace/slurm/slurm.h"

namespace millrace::cli {

struct PartitionFlags {
  std::string file;
  bool from_slurm = false;
  std::vector<std::string> gpu_of;  // "PARTITION=GPU", for gres without a type
  std::vector<std::string> only;    // names
};

// --partitions, --from-slurm, --gpu-of, --partition.
void add_partition_flags(CLI::App& app, PartitionFlags& flags);
// Throws for both or, when `required`, neither.
void check_partition_flags(const PartitionFlags& flags, bool required);

// A partition for each kind of GPU in each of Slurm's partitions that is up. `gpu` is the type of the gres, or a
// feature of the nodes or the partition's name where the catalogue knows that.
std::vector<plan::Partition> partitions_of(const slurm::Cluster& cluster);

struct KnownPartitions {
  std::vector<plan::Partition> partitions;
  plan::Why why;  // where they are from
};
// Errors: those of reading the file or asking Slurm; not_found, a name of --partition that is none.
[[nodiscard]] Result<KnownPartitions> known_partitions(const PartitionFlags& flags, const std::stop_token& stop);

}  // namespace millrace::cli
