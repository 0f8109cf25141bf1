// SPDX-License-Identifier: Apache-2.0
// Queues, reservations and instances: PC10, PC12 to PC20, PC22, PC24, PC56 to PC58.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "millrace/pcluster/check.h"

namespace millrace::pcluster {

namespace {

using yaml::Node;

constexpr int64_t kMostInBlock = 64, kMostInBlocks = 256;  // EC2 user guide, Capacity Blocks
constexpr double kBlockEndsEarlyHours = 0.5;

yaml::Place place_of_resource(const Resource& resource, std::string_view key) {
  return resource.node->find(key) != nullptr ? place_of(*resource.node, key) : place_of(*resource.node, "Name");
}

const ReservationFacts* facts_of(const Cluster& cluster, const Resource& resource) {
  if (resource.reservation_id == nullptr) return nullptr;
  const auto found = cluster.facts.reservations.find(resource.reservation_id->text);
  return found == cluster.facts.reservations.end() ? nullptr : &found->second;
}

void check_sizes(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    if (resource.max_count >= resource.min_count) return;
    report.add("PC10", place_of_resource(resource, "MaxCount"),
               fmt::format("MaxCount {} is less than MinCount {}", resource.max_count, resource.min_count));
  });
}

void check_one_block(const Queue& queue, const Resource& resource, FindingReport& report) {
  if (!resource.reserved()) {
    report.add("PC12", place_of_resource(resource, "Name"), fmt::format("{} names no reservation", resource.name));
  }
  if (resource.min_count != resource.max_count || resource.min_count < 1) {
    report.add("PC12", place_of_resource(resource, "MinCount"),
               fmt::format("MinCount {} and MaxCount {} differ or are 0", resource.min_count, resource.max_count));
  }
  if (resource.placement != nullptr && bool_at(resource.placement, "Enabled") != false) {
    report.add("PC13", resource.placement->at, fmt::format("{} asks for a placement group", queue.name));
  }
}

void check_blocks(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    if (!queue.capacity_block()) continue;
    if (queue.node->find("AllocationStrategy") != nullptr) {
      report.add("PC12", place_of(*queue.node, "AllocationStrategy"),
                 "AllocationStrategy cannot stand beside CAPACITY_BLOCK");
    }
    for (const Resource& resource : queue.resources) check_one_block(queue, resource, report);
  }
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    const ReservationFacts* facts = facts_of(cluster, resource);
    if (facts == nullptr || !facts->capacity_block || queue.capacity_block()) return;
    report.add("PC12", resource.reservation_id->at,
               fmt::format("{} is a Capacity Block, and the queue's CapacityType is {}", resource.reservation_id->text,
                           queue.capacity_type));
  });
}

void check_block_sizes(const Cluster& cluster, FindingReport& report) {
  int64_t all = 0;
  const Resource* last = nullptr;
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    const ReservationFacts* facts = facts_of(cluster, resource);
    if (!queue.capacity_block() && (facts == nullptr || !facts->capacity_block)) return;
    all += resource.max_count;
    last = &resource;
    if (resource.max_count > kMostInBlock) {
      report.add("PC14", place_of_resource(resource, "MaxCount"),
                 fmt::format("{} instances in one block; at most {}", resource.max_count, kMostInBlock));
    }
    const std::optional<double> hours = facts == nullptr ? std::nullopt : facts->hours;
    if (hours && cluster.facts.longest_job_hours.value_or(0) > *hours - kBlockEndsEarlyHours) {
      report.add("PC14", resource.reservation_id->at,
                 fmt::format("jobs of {} h do not fit in a block of {} h, which ends its instances 30 minutes early",
                             *cluster.facts.longest_job_hours, *hours),
                 {}, Severity::kWarning);
    }
  });
  if (all > kMostInBlocks) {
    report.add("PC14", place_of_resource(*last, "MaxCount"),
               fmt::format("{} instances in all blocks; at most {}", all, kMostInBlocks));
  }
}

void check_reservation_keys(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    if (resource.reservation_id != nullptr && resource.reservation_group != nullptr) {
      report.add("PC15", resource.reservation_group->at, "a reservation by id and one by resource group");
    }
    const yaml::Entry* target = resource.node->entry("CapacityReservationTarget");
    if (target != nullptr && !resource.reserved()) report.add("PC15", target->at, "neither an id nor a resource group");
    if (resource.reservation_id != nullptr && resource.is_list) {
      report.add("PC15", resource.reservation_id->at,
                 "a reservation by id goes with one InstanceType, not with Instances");
    }
  });
}

void check_platform(const Cluster& cluster, const ReservationFacts& facts, const Node& id, FindingReport& report) {
  const std::string_view os = text_at(at(&cluster.root, "Image"), "Os");
  if (cluster.options.version < Version{3, 14, 0} || facts.platform.empty() || os.empty()) return;
  const std::string_view wanted = os.starts_with("rhel") ? "Red Hat Enterprise Linux" : "Linux/UNIX";
  if (facts.platform == wanted) return;
  report.add("PC16", id.at, fmt::format("{} is for the platform {}, and {} is {}", id.text, facts.platform, os, wanted),
             fmt::format("Reserve capacity of the platform {}.", wanted));
}

void check_reservation_facts(const Cluster& cluster, FindingReport& report) {
  std::map<std::string, int64_t> nodes;
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    const ReservationFacts* facts = facts_of(cluster, resource);
    if (facts == nullptr) return;
    const std::string& id = resource.reservation_id->text;
    nodes[id] += resource.max_count;
    if (facts->count && nodes[id] > *facts->count) {
      report.add("PC16", place_of_resource(resource, "MaxCount"),
                 fmt::format("{} nodes of {}, which holds {}", nodes[id], id, *facts->count));
    }
    if (!facts->instance_type.empty() && !resource.types.empty() && resource.types[0]->text != facts->instance_type) {
      report.add("PC16", resource.types[0]->at, fmt::format("{} is for {}", id, facts->instance_type),
                 "Take the type that is reserved.");
    }
    check_platform(cluster, *facts, *resource.reservation_id, report);
    for (const Node* subnet : queue.subnets) {
      const auto known = cluster.facts.subnets.find(subnet->text);
      if (known == cluster.facts.subnets.end() || known->second.zone.empty() || facts->zone.empty()) continue;
      if (known->second.zone == facts->zone) continue;
      report.add("PC16", subnet->at,
                 fmt::format("this subnet is in {}, and {} in {}", known->second.zone, id, facts->zone),
                 "Use a subnet of the reservation's zone.");
    }
  });
}

void check_reserved_placement(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    const bool on = bool_at(resource.placement, "Enabled") == true || at(resource.placement, "Name") != nullptr;
    if (queue.capacity_block() || !resource.reserved() || !on) return;
    report.add("PC17", resource.placement->at,
               fmt::format("{} has a reservation and a placement group", resource.name));
  });
}

void check_paid_capacity(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    if (queue.capacity_block() || !resource.reserved() || resource.min_count >= resource.max_count) return;
    report.add(
        "PC18", place_of_resource(resource, "MinCount"),
        fmt::format("{} to {} nodes of a reservation that is paid whole", resource.min_count, resource.max_count));
  });
}

void check_types(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    const bool single = resource.node->find("InstanceType") != nullptr;
    if (single && resource.is_list) {
      report.add("PC19", place_of(*resource.node, "Instances"), "InstanceType and Instances");
    } else if (!single && !resource.is_list &&
               (resource.reservation_id == nullptr || cluster.options.version < Version{3, 8, 0})) {
      report.add("PC19", place_of(*resource.node, "Name"),
                 fmt::format("{} of {} has no InstanceType", resource.name, queue.name));
    }
    std::set<std::string_view> seen;
    for (const Node* type : resource.types) {
      if (!seen.insert(type->text).second) report.add("PC19", type->at, fmt::format("{} a second time", type->text));
    }
  });
}

void check_allocation(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    const Node* strategy = at(queue.node, "AllocationStrategy");
    if (strategy == nullptr || queue.capacity_block()) continue;
    if (queue.capacity_type == "ONDEMAND" && strategy->text != "lowest-price" && strategy->text != "prioritized") {
      report.add("PC11", strategy->at,
                 fmt::format("ONDEMAND goes with lowest-price or, from 3.14 on, prioritized, not {}", strategy->text),
                 "Remove AllocationStrategy.");
    } else if (queue.capacity_type == "SPOT" && strategy->text == "prioritized") {
      report.add("PC11", strategy->at, "prioritized is for ONDEMAND", "Use capacity-optimized-prioritized.");
    } else if (std::none_of(queue.resources.begin(), queue.resources.end(),
                            [](const Resource& r) { return r.is_list; })) {
      report.add("PC19", place_of(*queue.node, "AllocationStrategy"),
                 "AllocationStrategy chooses among Instances, and there is a single type", "Remove it.",
                 Severity::kNote);
    }
  }
}

int64_t cpus(const Instance& instance, bool smt) {
  return smt || instance.arm64 ? instance.vcpus : instance.vcpus / 2;
}

void check_alike(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    if (!resource.is_list || resource.known.size() < 2) return;
    const Instance& first = *resource.known.front();
    for (const Node* type : resource.types) {
      const Instance* other = find_instance(type->text);
      if (other == nullptr || other == &first) continue;
      if (cpus(first, resource.smt) != cpus(*other, resource.smt)) {
        report.add("PC20", type->at,
                   fmt::format("{} has {} CPUs and {} {}", first.name, cpus(first, resource.smt), other->name,
                               cpus(*other, resource.smt)));
      } else if (first.gpus != other->gpus || first.maker != other->maker) {
        report.add("PC20", type->at,
                   fmt::format("{} has {} {} accelerators and {} {} {}", first.name, first.gpus,
                               maker_name(first.maker), other->name, other->gpus, maker_name(other->maker)));
      } else if (first.addresses() != other->addresses()) {
        report.add("PC20", type->at,
                   fmt::format("{} has {} network cards and {} {}", first.name, first.addresses(), other->name,
                               other->addresses()),
                   {}, Severity::kWarning);
      }
    }
  });
}

void check_efa_types(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    for (const Node* type : resource.types) {
      const Instance* instance = find_instance(type->text);
      if (instance == nullptr) continue;
      if (resource.efa && instance->efa_interfaces == 0) {
        report.add("PC22", type->at, fmt::format("{} has no EFA", type->text),
                   "Remove Efa, or take a type that has it.");
      } else if (!resource.efa && instance->efa_interfaces > 0) {
        report.add("PC22", type->at,
                   fmt::format("{} has {} EFA interfaces, and EFA is off", type->text, instance->efa_interfaces),
                   "Set Efa.Enabled: true.", Severity::kWarning);
      }
    }
    const Node* gdr = at(resource.node, {"Efa", "GdrSupport"});
    if (gdr == nullptr) return;
    report.add("PC24", place_of(*at(resource.node, "Efa"), "GdrSupport"),
               resource.efa ? "GdrSupport has no effect" : "GdrSupport with EFA off", {},
               resource.efa ? Severity::kNote : Severity::kError);
  });
}

void check_scaling(const Cluster& cluster, FindingReport& report) {
  const Node* strategy = at(cluster.scheduling, "ScalingStrategy");
  if (strategy == nullptr || strategy->text != "best-effort") return;
  bool gang = false;
  each_resource(cluster,
                [&](const Queue&, const Resource& resource) { gang = gang || resource.efa || resource.gpus() > 0; });
  if (gang) report.add("PC56", strategy->at, "best-effort with queues for training");
}

void check_priorities(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    int64_t last_static = 0, first_dynamic = int64_t{1} << 40;
    const Resource* has_static = nullptr;
    for (const Resource& resource : queue.resources) {
      if (resource.min_count > 0) {
        last_static = std::max(last_static, int_at(resource.node, "StaticNodePriority").value_or(1));
        has_static = &resource;
      }
      if (resource.max_count > resource.min_count) {
        first_dynamic = std::min(first_dynamic, int_at(resource.node, "DynamicNodePriority").value_or(1000));
      }
    }
    if (has_static == nullptr || last_static < first_dynamic) continue;
    report.add("PC57", place_of_resource(*has_static, "StaticNodePriority"),
               fmt::format("{}: static nodes up to priority {}, dynamic ones from {}", queue.name, last_static,
                           first_dynamic));
  }
}

void check_architecture(const Cluster& cluster, FindingReport& report) {
  constexpr std::array<std::string_view, 6> kOldGpus = {"p2.", "p3.", "p3dn.", "g2.", "g3.", "g3s."};
  const Instance* head = find_instance(text_at(cluster.head, "InstanceType"));
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    for (const Node* type : resource.types) {
      const Instance* instance = find_instance(type->text);
      if (head != nullptr && instance != nullptr && head->arm64 != instance->arm64) {
        report.add("PC58", type->at,
                   fmt::format("{} is {} and the head node is {}", type->text, instance->arm64 ? "arm64" : "x86_64",
                               head->arm64 ? "arm64" : "x86_64"));
      }
      const bool old =
          std::any_of(kOldGpus.begin(), kOldGpus.end(), [&](std::string_view p) { return type->text.starts_with(p); });
      if (old && cluster.options.version >= Version{3, 8, 0}) {
        report.add("PC58", type->at, fmt::format("the open NVIDIA driver does not know the GPUs of {}", type->text));
      }
    }
  });
}

constexpr std::array<Check, 14> kComputeChecks = {check_sizes,
                                                  check_blocks,
                                                  check_block_sizes,
                                                  check_reservation_keys,
                                                  check_reservation_facts,
                                                  check_reserved_placement,
                                                  check_paid_capacity,
                                                  check_types,
                                                  check_allocation,
                                                  check_alike,
                                                  check_efa_types,
                                                  check_scaling,
                                                  check_priorities,
                                                  check_architecture};

}  // namespace

std::span<const Check> compute_checks() {
  return kComputeChecks;
}

}  // namespace millrace::pcluster
