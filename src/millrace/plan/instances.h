// SPDX-License-Identifier: Apache-2.0
#pragma once

// EC2 instance types: the one table of the planner and of the linter of cluster files (data/instances.csv). A type that
// is not in it is unknown. Functions are pure and thread-safe; what they return lives as long as the program.

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
  std::string_view gpu_id;     // of the catalogue; empty: no GPU, or one that the catalogue does not have
  int64_t efa_interfaces = 0;  // 0: no EFA
  int64_t nvme_gb = 0;         // local, all disks; 0: none
  int64_t network_mbps = 0;    // 0: unknown
  bool arm64 = false;

  // Addresses that one node takes from its subnet with or without EFA: one for each network card.
  int64_t addresses() const { return efa_interfaces > 1 ? efa_interfaces : 1; }
};

// By name.
std::span<const Instance> instances();
// Null where the type is not in the table.
const Instance* find_instance(std::string_view name);
// A type whose GPUs the catalogue has. Error: not_found, with the types that have them.
[[nodiscard]] Result<Instance> find_gpu_instance(std::string_view name);

}  // namespace millrace::plan
