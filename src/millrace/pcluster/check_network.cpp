// SPDX-License-Identifier: Apache-2.0
// Subnets, placement and security groups: PC21, PC23, PC25 to PC29.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "millrace/pcluster/check.h"

namespace millrace::pcluster {

namespace {

using yaml::Node;

constexpr int64_t kKeptByAws = 5;      // addresses of every subnet
constexpr int64_t kSlack = 8;          // replacements that start before what they replace has ended
constexpr int64_t kUsualSubnet = 251;  // of a /24

bool placement_on(const Node* placement) {
  return bool_at(placement, "Enabled") == true || at(placement, "Name") != nullptr || at(placement, "Id") != nullptr;
}

bool creates_fsx(const Cluster& cluster) {
  return std::any_of(cluster.storages.begin(), cluster.storages.end(),
                     [](const Storage& s) { return s.type == "FsxLustre" && !s.existing; });
}

void check_zones(const Cluster& cluster, const Queue& queue, FindingReport& report) {
  std::map<std::string, std::string> zones;
  std::set<std::string> seen;
  for (const Node* subnet : queue.subnets) {
    if (!seen.insert(subnet->text).second) {
      report.add("PC21", subnet->at, fmt::format("{} a second time", subnet->text));
      continue;
    }
    const auto known = cluster.facts.subnets.find(subnet->text);
    if (known == cluster.facts.subnets.end() || known->second.zone.empty()) continue;
    const auto [other, is_new] = zones.try_emplace(known->second.zone, subnet->text);
    if (!is_new)
      report.add("PC21", subnet->at,
                 fmt::format("{} and {} are both in {}", other->second, subnet->text, other->first));
  }
}

void check_several_subnets(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    check_zones(cluster, queue, report);
    if (queue.subnets.size() < 2) continue;
    const yaml::Place place = place_of(*queue.networking, "SubnetIds");
    const auto refuse = [&](std::string_view what) {
      report.add("PC21", place, fmt::format("{} has several subnets and {}", queue.name, what));
    };
    if (creates_fsx(cluster)) refuse("the cluster creates an FSx file system, which lies in one");
    for (const Resource& resource : queue.resources) {
      if (!resource.is_list) refuse(fmt::format("{} a single InstanceType", resource.name));
      if (resource.efa) refuse(fmt::format("{} EFA, which does not leave its zone", resource.name));
      if (placement_on(resource.placement))
        refuse(fmt::format("{} a placement group, which does not leave its zone", resource.name));
    }
  }
}

void check_efa_placement(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    if (!resource.efa || queue.capacity_block() || queue.subnets.size() > 1) return;
    const bool off = bool_at(resource.placement, "Enabled") == false;
    if (off && !resource.reserved()) {
      report.add("PC23", resource.placement->at,
                 fmt::format("{} has EFA and neither placement group nor reservation", resource.name),
                 "Set PlacementGroup.Enabled: true: nodes are placed near each other.", Severity::kWarning);
    } else if (!off && !placement_on(resource.placement)) {
      report.add("PC23", place_of(*resource.node, "Efa"),
                 fmt::format("{} has EFA, and nothing is said of a placement group", resource.name));
    }
  });
}

// From 3.16 on, a node with one card and EFA has a plain and an EFA-only interface, unless DevSettings say otherwise.
bool has_several_interfaces(const Cluster& cluster, const Resource& resource) {
  if (resource.addresses() > 1) return true;
  return cluster.options.version >= Version{3, 16, 0} && resource.efa && !resource.known.empty() &&
         text_at(at(&cluster.root, "DevSettings"), "EfaInterfaceType") != "efa";
}

void check_public_addresses(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    if (bool_at(queue.networking, "AssignPublicIp") != true) continue;
    const bool several = std::any_of(queue.resources.begin(), queue.resources.end(),
                                     [&](const Resource& r) { return has_several_interfaces(cluster, r); });
    if (several)
      report.add("PC25", place_of(*queue.networking, "AssignPublicIp"), "these nodes have several network interfaces");
  }
}

// Addresses that are taken from each subnet at most.
std::map<std::string, int64_t> addresses_by_subnet(const Cluster& cluster) {
  std::map<std::string, int64_t> wanted;
  for (const Queue& queue : cluster.queues) {
    if (queue.subnets.size() != 1) continue;  // how many come from which is unknown
    for (const Resource& resource : queue.resources)
      wanted[queue.subnets[0]->text] += resource.max_count * resource.addresses();
  }
  if (const auto head = wanted.find(std::string(text_at(at(cluster.head, "Networking"), "SubnetId")));
      head != wanted.end())
    ++head->second;
  return wanted;
}

int64_t prefix_for(int64_t addresses) {
  int64_t prefix = 28;
  while (prefix > 16 && (int64_t{1} << (32 - prefix)) - kKeptByAws < addresses) --prefix;
  return prefix;
}

void check_subnet_sizes(const Cluster& cluster, FindingReport& report) {
  std::map<std::string, int64_t> wanted = addresses_by_subnet(cluster);
  std::set<std::string> reported;
  for (const Queue& queue : cluster.queues) {
    if (queue.subnets.size() != 1 || !reported.insert(queue.subnets[0]->text).second) continue;
    const Node& subnet = *queue.subnets[0];
    const int64_t addresses = wanted[subnet.text] + kSlack;
    const auto known = cluster.facts.subnets.find(subnet.text);
    if (known != cluster.facts.subnets.end() && known->second.prefix) {
      const int64_t holds = (int64_t{1} << (32 - *known->second.prefix)) - kKeptByAws;
      if (addresses > holds) {
        report.add(
            "PC26", subnet.at,
            fmt::format("nodes take up to {} addresses and a /{} has {}", addresses, *known->second.prefix, holds),
            fmt::format("Use a /{} or wider.", prefix_for(addresses)));
      }
    } else if (addresses > kUsualSubnet) {
      report.add("PC26", subnet.at,
                 fmt::format("nodes take up to {} addresses, so this must be a /{} or wider", addresses,
                             prefix_for(addresses)),
                 "Check it, and give the subnet's prefix in --facts.", Severity::kNote);
    }
  }
}

bool own_groups(const Node* networking) {
  return at(networking, "SecurityGroups") != nullptr;
}

void check_groups(const Cluster& cluster, FindingReport& report) {
  const Node* head = at(cluster.head, "Networking");
  const auto both = [&](const Node* networking) {
    if (own_groups(networking) && at(networking, "AdditionalSecurityGroups") != nullptr) {
      report.add("PC27", place_of(*networking, "AdditionalSecurityGroups"),
                 "SecurityGroups and AdditionalSecurityGroups together");
    }
  };
  both(head);
  bool any = false;
  for (const Queue& queue : cluster.queues) {
    both(queue.networking);
    any = any || own_groups(queue.networking);
    if (own_groups(queue.networking) && !own_groups(head)) {
      report.add("PC27", place_of(*queue.networking, "SecurityGroups"),
                 fmt::format("{} has its own groups and the head node the managed one", queue.name), {},
                 Severity::kWarning);
    }
  }
  if (own_groups(head) && !any && !cluster.queues.empty()) {
    report.add("PC27", place_of(*head, "SecurityGroups"),
               "the head node has its own groups and the queues the managed one", {}, Severity::kWarning);
  }
}

void check_efa_groups(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    const bool efa =
        std::any_of(queue.resources.begin(), queue.resources.end(), [](const Resource& r) { return r.efa; });
    if (!efa || !own_groups(queue.networking)) continue;
    bool lets_through = false, all_known = true;
    for (const Node& group : items_at(queue.networking, "SecurityGroups")) {
      const auto known = cluster.facts.security_groups.find(group.text);
      all_known = all_known && known != cluster.facts.security_groups.end();
      lets_through = lets_through || (known != cluster.facts.security_groups.end() && known->second);
    }
    if (lets_through) continue;
    report.add("PC28", place_of(*queue.networking, "SecurityGroups"),
               all_known ? fmt::format("none of the groups of {} lets all traffic to itself through", queue.name)
                         : fmt::format("{} has EFA; one of its groups must let all traffic from and to itself through",
                                       queue.name),
               {}, all_known ? Severity::kError : Severity::kWarning);
  }
}

void check_placement(const Node* placement, FindingReport& report) {
  if (placement == nullptr) return;
  const Node* id = at(placement, "Id");
  const Node* name = at(placement, "Name");
  if (id != nullptr && name != nullptr) report.add("PC29", id->at, "Id and Name");
  if (bool_at(placement, "Enabled") == false && (id != nullptr || name != nullptr)) {
    report.add("PC29", (id != nullptr ? id : name)->at, "a group is named and switched off");
  }
}

void check_placements(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    check_placement(at(queue.networking, "PlacementGroup"), report);
    for (const Resource& resource : queue.resources)
      check_placement(at(resource.node, {"Networking", "PlacementGroup"}), report);
  }
}

constexpr std::array<Check, 7> kNetworkChecks = {check_several_subnets, check_efa_placement, check_public_addresses,
                                                 check_subnet_sizes,    check_groups,        check_efa_groups,
                                                 check_placements};

}  // namespace

std::span<const Check> network_checks() {
  return kNetworkChecks;
}

}  // namespace millrace::pcluster
