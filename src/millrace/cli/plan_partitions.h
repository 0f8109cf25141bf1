// SPDX-License-Identifier: Apache-2.0
#pragma once

// Partitions for `millrace plan`, from a file or from the Slurm that this machine belongs to.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/cli/plan_flags.h"
#include "millrace/plan/partitions.h"
#include "millrace/slurm/slurm.h"

namespace millrace::cli {

struct PartitionFlags {
  std::string file;
  bool from_slurm = false;
  std::vector<std::string> gpu_of;  // "NAME=GPU": of nodes (a host list), of a type in gres.conf, or of a partition
  std::vector<std::string> only;    // names
};

// --partitions, --from-slurm, --gpu-of, --partition.
void add_partition_flags(CLI::App& app, PartitionFlags& flags);
// Throws for both or, when `required`, neither.
void check_partition_flags(const PartitionFlags& flags, bool required);

// The names and GPUs of --gpu-of, and which of them were used.
class GpuNames {
 public:
  // Error: invalid_argument, a host list that is none.
  [[nodiscard]] static Result<GpuNames> of(const std::vector<std::string>& flags);

  // The GPU that `name` (a node, a type, a partition) was given; nullopt for another name.
  std::optional<std::string> find(const std::string& name);
  // Error: not_found, a flag that named none of what was looked up.
  [[nodiscard]] Status check_all_used() const;

 private:
  struct Given {
    std::string flag;
    std::string gpu;
    bool used = false;
  };
  std::vector<Given> given_;
  std::map<std::string, size_t, std::less<>> by_name_;  // index of given_
};

// A partition for each kind of GPU in each of Slurm's partitions that is up: nodes of one partition, and GPUs of one
// node, may be of several. A kind is what `names` says of the node or of the type of its gres; else the type, or a
// feature of the node, where the catalogue knows it; else what `names` says of the partition; else the name of the node
// ("gpu4090-03") or of the partition, where the catalogue knows it.
std::vector<plan::Partition> partitions_of(const slurm::Cluster& cluster, GpuNames& names);

struct KnownPartitions {
  std::vector<plan::Partition> partitions;
  plan::Why why;  // where they are from
};
// Errors: those of reading the file or asking Slurm; not_found, a name of --partition or --gpu-of that is none.
[[nodiscard]] Result<KnownPartitions> known_partitions(const PartitionFlags& flags, const std::stop_token& stop);

}  // namespace millrace::cli
