// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "millrace/jobs/demand.h"
#include "millrace/jobs/ledger.h"
#include "millrace/jobs/why_evidence.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

namespace {

// Until all jobs of the node have reached their limits; nullopt where one has none.
std::optional<int64_t> free_in(const slurm::Node& node, const slurm::Cluster& cluster, std::string& ids) {
  std::optional<int64_t> longest = 0;
  for (const slurm::Job& job : cluster.jobs) {
    if (std::find(job.node_list.begin(), job.node_list.end(), node.name) == job.node_list.end()) continue;
    ids += (ids.empty() ? "" : ", ") + job.id;
    longest = longest && job.time_left_s ? std::optional(std::max(*longest, *job.time_left_s)) : std::nullopt;
  }
  return longest;
}

std::string closed_state(const slurm::Node& node) {
  return node.reason.empty() ? node.state : fmt::format("{} ({})", node.state, node.reason);
}

std::string node_line(const slurm::Node& node, const slurm::Cluster& cluster) {
  if (!node.usable) return fmt::format("{} would fit, but is {}", node.name, closed_state(node));
  std::string ids;
  const auto left = free_in(node, cluster, ids);
  if (ids.empty()) return node.name + " fits and no job is on it";
  return fmt::format("{} fits when job {} has ended: {}", node.name, ids,
                     left ? "in " + in_time(*left) + " at the latest" : "there is no time limit");
}

// Whether the reservation lets the job in: it was asked for by name.
bool is_its_own(const slurm::JobDetails& job, const slurm::Reservation& reservation) {
  return field_of(job, "Reservation") == reservation.name;
}

bool could_use(const slurm::JobDetails& job, const slurm::Reservation& reservation, const slurm::Cluster& cluster) {
  const auto asked = slurm::expand_hostlist(field_of(job, "ReqNodeList"));
  const auto holds = [&](const std::string& name) {
    return std::find(reservation.nodes.begin(), reservation.nodes.end(), name) != reservation.nodes.end();
  };
  if (asked && !asked->empty()) return std::any_of(asked->begin(), asked->end(), holds);
  return std::any_of(cluster.nodes.begin(), cluster.nodes.end(), [&](const slurm::Node& node) {
    return is_in(node, field_of(job, "Partition")) && holds(node.name);
  });
}

std::string node_names(const slurm::Reservation& reservation) {
  if (reservation.nodes.size() == 1) return reservation.nodes[0];
  return fmt::format("{} nodes ({} to {})", reservation.nodes.size(), reservation.nodes.front(),
                     reservation.nodes.back());
}

// When it begins or ends, seen from now.
std::string reserved_time(const slurm::Reservation& reservation, int64_t now) {
  if (!reservation.start || !reservation.end) return "for a time that Slurm does not tell";
  if (*reservation.start <= now) {
    return fmt::format("until {}, for another {}", utc_time(*reservation.end), in_time(*reservation.end - now));
  }
  return fmt::format("from {}, in {}, to {}", utc_time(*reservation.start), in_time(*reservation.start - now),
                     utc_time(*reservation.end));
}

}  // namespace

void add_node_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence) {
  const Demand demand = demand_of(job);
  std::vector<std::string> lines;
  int64_t all = 0, fitting = 0, free = 0;
  for (const slurm::Node& node : cluster.nodes) {
    if (!is_in(node, field_of(job, "Partition"))) continue;
    ++all;
    if (!fits(node, demand, false)) continue;
    ++fitting;
    if (node.usable && fits(node, demand, true)) {
      ++free;
    } else if (lines.size() < kMostLines) {
      lines.push_back(node_line(node, cluster));
    }
  }
  evidence.push_back("it asks for " + demand_text(demand));
  evidence.push_back(fmt::format("partition {}: {} of {} nodes could hold its part, {} of them now",
                                 field_of(job, "Partition"), fitting, all, free));
  evidence.insert(evidence.end(), lines.begin(), lines.end());
}

void add_partition_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster,
                         std::vector<std::string>& evidence) {
  for (const slurm::Partition& partition : cluster.partitions) {
    if (partition.name != field_of(job, "Partition")) continue;
    const auto nodes = slurm::expand_hostlist(partition.nodes);
    evidence.push_back(fmt::format("it asks for {} nodes and {}; partition {} has {} nodes and a limit of {}",
                                   field_of(job, "NumNodes"), field_of(job, "TimeLimit"), partition.name,
                                   nodes ? std::to_string(nodes->size()) : partition.nodes,
                                   partition.max_time_s ? in_time(*partition.max_time_s) : "none"));
  }
}

void add_closed_nodes(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence) {
  size_t lines = 0;
  const auto asked = slurm::expand_hostlist(field_of(job, "ReqNodeList"));
  for (const slurm::Node& node : cluster.nodes) {
    const bool named = asked && std::find(asked->begin(), asked->end(), node.name) != asked->end();
    if (node.usable || (!named && !is_in(node, field_of(job, "Partition"))) || ++lines > kMostLines) continue;
    evidence.push_back(fmt::format("{} is {}", node.name, closed_state(node)));
  }
}

void add_failed_nodes(const slurm::JobDetails& job, const slurm::Cluster* cluster, std::vector<std::string>& evidence) {
  if (const std::string failed = field_of(job, "FailedNode"); !failed.empty())
    evidence.push_back("the node that failed: " + failed);
  const auto used = slurm::expand_hostlist(field_of(job, "NodeList"));
  if (!used || cluster == nullptr) return;
  size_t lines = 0;
  for (const slurm::Node& node : cluster->nodes) {
    const bool mine = std::find(used->begin(), used->end(), node.name) != used->end();
    if (!mine || (node.usable && !failed_to_boot(node, job)) || ++lines > kMostLines) continue;
    evidence.push_back(fmt::format("{} is {} now{}", node.name, closed_state(node),
                                   node.reason_time ? ", since " + utc_time(*node.reason_time) : ""));
  }
}

void add_preemptors(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  // Slurm does not name the job that took the nodes, but it starts there once they are free.
  constexpr int64_t kLatest = 300;  // KillWait, GraceTime and an epilog pass before it starts
  const auto at = slurm::parse_local_time(field_of(job, "PreemptTime"));
  if (!at) return;
  evidence.push_back("it was preempted at " + utc_time(*at));
  const auto used = slurm::expand_hostlist(field_of(job, "NodeList"));
  const std::string own = job.array.empty() ? job.number : job.array;
  size_t lines = 0;
  for (const slurm::JobState& other : facts.queue) {
    if (!used || other.base_id == own || !other.started || *other.started < *at || *other.started > *at + kLatest)
      continue;
    const auto nodes = slurm::expand_hostlist(other.nodes);
    const bool there = nodes && std::any_of(nodes->begin(), nodes->end(), [&](const std::string& node) {
                         return std::find(used->begin(), used->end(), node) != used->end();
                       });
    if (!there || ++lines > kMostLines) continue;
    evidence.push_back(fmt::format("job {} ({}, partition {}) then started on {}, at {}", other.id, other.user,
                                   other.partition, other.nodes, utc_time(*other.started)));
  }
}

void add_reservation_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const auto limit = slurm::parse_time_limit(field_of(job, "TimeLimit"));
  for (const slurm::Reservation& each : facts.reservations) {
    if (each.nodes.empty() || (each.end && *each.end <= facts.now)) continue;
    const bool own = is_its_own(job, each);
    if (!own && (facts.cluster == nullptr || !could_use(job, each, *facts.cluster))) continue;
    evidence.push_back(fmt::format("{} {}{} holds {} {}", own ? "its reservation" : "reservation", each.name,
                                   each.is_maintenance() ? " (maintenance)" : "", node_names(each),
                                   reserved_time(each, facts.now)));
    if (own || !each.start || *each.start <= facts.now) continue;
    evidence.push_back(
        fmt::format("its limit of {} reaches into that; with a --time of less than {} it may start before",
                    limit ? in_time(*limit) : "no end", in_time(*each.start - facts.now)));
  }
}

}  // namespace millrace::jobs
