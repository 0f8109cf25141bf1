// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the linter knows of EC2 instance types. A table of its date; a type that is not in it is unknown, and nothing is
// said of it. Thread-safe.

#include <cstdint>
#include <span>
#include <string_view>

namespace millrace::cluster {

enum class Maker { kNone, kNvidia, kAmd, kHabana, kAws, kOther };
std::string_view maker_name(Maker maker);

struct Instance {
  std::string_view name;
  int64_t vcpus;
  int64_t memory_mib;
  int64_t gpus;  // accelerators of `maker`
  Maker maker;
  int64_t efa_interfaces;  // 0: no EFA
  int64_t nvme_gb;         // local, all disks; 0: none
  bool arm64;

  // Addresses that one node takes from its subnet with or without EFA: one for each network card.
  int64_t addresses() const { return efa_interfaces > 1 ? efa_interfaces : 1; }
};

// By name.
std::span<const Instance> instances();
// Null where the type is not in the table.
const Instance* find_instance(std::string_view name);

}  // namespace millrace::cluster
