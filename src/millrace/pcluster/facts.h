// SPDX-License-Identifier: Apache-2.0
#pragma once

// Facts about an AWS account that a cluster file does not contain, read from a separate file (example:
// docs/cluster.md). Values.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::pcluster {

struct ReservationFacts {
  std::optional<int64_t> count;  // instances
  bool capacity_block = false;   // false: on demand
  std::string zone;              // empty: unknown, as for all texts below
  std::string instance_type;
  std::optional<double> hours;       // length of a block
  std::optional<int64_t> available;  // instances that can be launched now
  std::string interconnect;          // capacity blocks of UltraServers only: "ok", "impaired"
  std::string platform;              // "Linux/UNIX", "Red Hat Enterprise Linux"
};

struct SubnetFacts {
  std::optional<int64_t> prefix;  // prefix length: 20 for a /20
  std::string zone;
  std::optional<bool> is_public;
};

struct Facts {
  std::string cluster_name;
  std::map<std::string, ReservationFacts, std::less<>> reservations;  // by id
  std::map<std::string, SubnetFacts, std::less<>> subnets;            // by id
  std::map<std::string, bool, std::less<>> security_groups;           // by id: allows all traffic within itself
  std::map<std::string, std::string, std::less<>> buckets;            // by name: region
  std::map<std::string, std::vector<std::string>, std::less<>> launch_templates;  // by id: the properties they set
  std::string key_type;                                                           // of the SSH key: "rsa", "ed25519"
  std::optional<bool> jobs_share_nodes;
  std::optional<double> longest_job_hours;
};

// Parses the facts. Errors: invalid_argument with the line, for invalid YAML, an unknown key or a wrong type.
[[nodiscard]] Result<Facts> parse_facts(std::string_view text, std::string_view file);

}  // namespace millrace::pcluster
