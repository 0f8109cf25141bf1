// SPDX-License-Identifier: Apache-2.0
// What the validators of 3.13 to 3.16 added: PC67 to PC74.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "millrace/pcluster/check.h"
#include "millrace/pcluster/releases.h"

namespace millrace::pcluster {

namespace {

using yaml::Node;

// Types that are sold in UltraServers, and those that some systems do not support.
constexpr std::string_view kUltraServer = "p6e-gb200";
constexpr std::array<std::string_view, 2> kNewTypes = {"p6e-gb200", "p6-b300"};

bool validates(const Cluster& cluster, std::string_view validator) {
  return has_release_fact("validator", validator, cluster.options.version);
}

std::string in_a_row(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) out += fmt::format("{}{}", out.empty() ? "" : ", ", word);
  return out;
}

const Node* ultra_server(const Resource& resource) {
  const auto found = std::find_if(resource.types.begin(), resource.types.end(),
                                  [](const Node* type) { return type->text.starts_with(kUltraServer); });
  return found == resource.types.end() ? nullptr : *found;
}

// Its reservations that are Capacity Blocks, as the queue or the facts say.
template <class Look>
void each_ultra_block(const Cluster& cluster, Look&& look) {
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    if (ultra_server(resource) == nullptr || resource.reservation_id == nullptr) return;
    const auto known = cluster.facts.reservations.find(resource.reservation_id->text);
    const ReservationFacts* facts = known == cluster.facts.reservations.end() ? nullptr : &known->second;
    if (queue.capacity_block() || (facts != nullptr && facts->capacity_block)) look(resource, facts);
  });
}

void check_block_size(const Cluster& cluster, FindingReport& report) {
  if (!validates(cluster, "UltraserverCapacityBlockSizeValidator")) return;
  const std::vector<std::string_view> sizes = release_values("block_size_p6e-gb200", cluster.options.version);
  each_ultra_block(cluster, [&](const Resource& resource, const ReservationFacts* facts) {
    const bool counted = facts != nullptr && facts->count;
    const std::string size = std::to_string(counted ? *facts->count : resource.max_count);
    if (std::find(sizes.begin(), sizes.end(), size) != sizes.end()) return;
    report.add("PC67", counted ? resource.reservation_id->at : place_of(*resource.node, "MaxCount"),
               fmt::format("{} instances of {}; its blocks hold {}", size, kUltraServer, in_a_row(sizes)), {},
               counted ? Severity::kError : Severity::kWarning);
  });
}

void check_block_health(const Cluster& cluster, FindingReport& report) {
  if (!validates(cluster, "CapacityBlockHealthStatusValidator")) return;
  each_ultra_block(cluster, [&](const Resource& resource, const ReservationFacts* facts) {
    const Node& id = *resource.reservation_id;
    if (facts != nullptr && !facts->interconnect.empty() && facts->interconnect != "ok") {
      report.add("PC68", id.at, fmt::format("the interconnect of {} is {}", id.text, facts->interconnect));
    }
    if (facts != nullptr && facts->available && facts->count && *facts->available < *facts->count) {
      report.add("PC68", id.at,
                 fmt::format("{} of the {} instances of {} are available", *facts->available, *facts->count, id.text));
    }
    if (facts != nullptr && (facts->available || !facts->interconnect.empty())) return;
    report.add(
        "PC68", id.at, fmt::format("ParallelCluster asks for the health of {} before it creates the cluster", id.text),
        "See aws ec2 describe-capacity-block-status, and give interconnect and available in --facts.", Severity::kNote);
  });
}

void check_head_memory(const Cluster& cluster, FindingReport& report) {
  if (!validates(cluster, "HeadNodeMemorySizeValidator")) return;
  const Node* type = at(cluster.head, "InstanceType");
  const Instance* head = type == nullptr ? nullptr : find_instance(type->text);
  if (head == nullptr) return;
  const auto nodes = static_cast<double>(cluster.max_nodes());
  const double wanted = std::min(nodes / 25 + 0.6, 16.0), has = static_cast<double>(head->memory_mib) / 1024;
  if (has >= wanted) return;
  report.add("PC69", type->at,
             fmt::format("{} has {:g} GiB; {} nodes want {:.1f}", type->text, has, cluster.max_nodes(), wanted));
}

void check_shared_ebs(const Cluster& cluster, FindingReport& report) {
  if (!validates(cluster, "SharedEbsPerformanceBottleNeckValidator") || cluster.max_nodes() <= 100) return;
  for (const Storage& storage : cluster.storages) {
    if (storage.type != "Ebs") continue;
    report.add("PC70", place_of(*storage.node, "StorageType"),
               fmt::format("{} is served by the head node to {} nodes", storage.mount, cluster.max_nodes()));
  }
}

void check_launch_templates(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    const Node* id = at(resource.node, {"LaunchTemplateOverrides", "LaunchTemplateId"});
    if (id == nullptr) return;
    const auto known = cluster.facts.launch_templates.find(id->text);
    if (known == cluster.facts.launch_templates.end()) {
      report.add(
          "PC71", id->at,
          fmt::format("{} may set NetworkInterfaces only, which replaces what ParallelCluster would set", id->text),
          "Check the template, and list what it sets in --facts: launch_templates.", Severity::kNote);
      return;
    }
    for (const std::string& property : known->second) {
      if (property != "NetworkInterfaces") report.add("PC71", id->at, fmt::format("{} sets {}", id->text, property));
    }
  });
}

void check_systems_of_types(const Cluster& cluster, FindingReport& report) {
  const std::string_view os = text_at(at(&cluster.root, "Image"), "Os");
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    for (const Node* type : resource.types) {
      for (const std::string_view name : kNewTypes) {
        const bool refused = type->text.starts_with(name) &&
                             has_release_fact(fmt::format("os_without_{}", name), os, cluster.options.version);
        if (refused) report.add("PC72", type->at, fmt::format("{} is not supported with {}", type->text, os));
      }
    }
  });
}

void check_efs_settings(const Cluster& cluster, FindingReport& report) {
  if (at(cluster.head, "SharedStorageEfsSettings") == nullptr) return;
  const std::string_view type = text_at(cluster.head, "SharedStorageType");
  if (type == "Efs") return;
  report.add("PC73", place_of(*cluster.head, "SharedStorageEfsSettings"),
             fmt::format("SharedStorageType is {}", type.empty() ? "Ebs, the default" : type));
}

void check_timeouts(const Cluster& cluster, FindingReport& report) {
  const Node* timeouts = at(&cluster.root, {"DevSettings", "Timeouts"});
  const std::optional<int64_t> usual = release_limit("bootstrap_seconds", cluster.options.version);
  for (const char* key : {"HeadNodeBootstrapTimeout", "ComputeNodeBootstrapTimeout"}) {
    const std::optional<int64_t> given = int_at(timeouts, key);
    if (!given || !usual || *given >= *usual) continue;
    report.add(
        "PC74", place_of(*timeouts, key),
        fmt::format("{} s, and ParallelCluster {} waits {} s", *given, to_string(cluster.options.version), *usual));
  }
}

constexpr std::array<Check, 8> kReleaseChecks = {check_block_size,   check_block_health,     check_head_memory,
                                                 check_shared_ebs,   check_launch_templates, check_systems_of_types,
                                                 check_efs_settings, check_timeouts};

}  // namespace

std::span<const Check> release_checks() {
  return kReleaseChecks;
}

}  // namespace millrace::pcluster
