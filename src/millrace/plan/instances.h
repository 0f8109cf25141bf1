// SPDX-License-Identifier: Apache-2.0
#pragma once

// EC2 instance types: one table for the planner and the linter of cluster files (data/instances.csv). A type that is
// not in it is unknown. Functions are pure and thread-safe; returned references live as long as the program.

#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace::plan {

enum class Maker { kNone, kNvidia, kAmd, kHabana, kAws, kOther };
std::string_view maker_name(Maker maker);

struct Instance {
  std::string_view name;  // "p5e.48xlarge"
  int64_t vcpus = 0;
  int64_t memory_mib = 0;
  int64_t gpus = 0;  // accelerators of `maker`
  Maker maker = Maker::kNone;
  std::string_view gpu_id;     // id in the catalogue; empty: no GPU, or one that is not in the catalogue
  int64_t efa_interfaces = 0;  // 0: no EFA
  int64_t nvme_gb = 0;         // local, all disks together; 0: none
  int64_t network_mbps = 0;    // 0: unknown
  bool arm64 = false;

  // Returns the number of subnet addresses that one node takes, with or without EFA: one for each network card.
  int64_t addresses() const { return efa_interfaces > 1 ? efa_interfaces : 1; }
};

// Returns all types, ordered by name.
std::span<const Instance> instances();
// Returns nullptr if the type is not in the table.
const Instance* find_instance(std::string_view name);
// Returns a type whose GPUs are in the catalogue. Error: not_found, with the types that have them.
[[nodiscard]] Result<Instance> find_gpu_instance(std::string_view name);

}  // namespace millrace::plan
