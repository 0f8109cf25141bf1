// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the partitions for `millrace plan`, from a file or from the Slurm cluster of this machine.

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
  std::vector<std::string> gpu_of;  // "NAME=GPU": NAME is a host list, a type in gres.conf, or a partition
  std::vector<std::string> only;    // names
};

// Adds --partitions, --from-slurm, --gpu-of and --partition.
void add_partition_flags(CLI::App& app, PartitionFlags& flags);
// Throws if a file and Slurm are both given or, when `required`, if neither is.
void check_partition_flags(const PartitionFlags& flags, bool required);

// The names and GPUs of --gpu-of. Tracks which of them were used.
class GpuNames {
 public:
  // Parses the flags. Error: invalid_argument (an invalid host list).
  [[nodiscard]] static Result<GpuNames> of(const std::vector<std::string>& flags);

  // Returns the GPU given for `name` (a node, a type, a partition); nullopt for another name.
  std::optional<std::string> find(const std::string& name);
  // Checks that every flag named something. Error: not_found (a flag whose name was never looked up).
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

// Returns a partition for each kind of GPU in each of Slurm's partitions that is up, because the nodes of one
// partition, and the GPUs of one node, may be of several kinds. The kind is the first of these that is known: the GPU
// in `names` for the node or for the type of its gres; the type, or a feature of the node, if the catalogue knows it;
// the GPU in `names` for the partition; the name of the node ("gpu4090-03") or of the partition, if the catalogue
// knows it.
std::vector<plan::Partition> partitions_of(const slurm::Cluster& cluster, GpuNames& names);

struct KnownPartitions {
  std::vector<plan::Partition> partitions;
  plan::Why why;  // the source of the partitions
};
// Returns the partitions that the flags choose. Errors: those of reading the file or asking Slurm; not_found (an
// unknown name in --partition or --gpu-of).
[[nodiscard]] Result<KnownPartitions> known_partitions(const PartitionFlags& flags, const std::stop_token& stop);

}  // namespace millrace::cli
