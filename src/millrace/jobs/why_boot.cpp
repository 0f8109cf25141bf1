// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "millrace/jobs/ledger.h"
#include "millrace/jobs/why_evidence.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

namespace {

// Slurm's own; and that of AWS ParallelCluster's ResumeProgram, which may put EC2's error code before it.
constexpr std::array<std::string_view, 2> kBootReasons{"ResumeTimeout reached", "Failure when resuming nodes"};
// Between the end of a job and the last time that a daemon writes the reason again.
constexpr int64_t kReasonDelay_s = 60;

const slurm::Node* find_node(const slurm::Cluster& cluster, const std::string& name) {
  const auto found = std::find_if(cluster.nodes.begin(), cluster.nodes.end(),
                                  [&](const slurm::Node& node) { return node.name == name; });
  return found == cluster.nodes.end() ? nullptr : &*found;
}

std::vector<std::string> nodes_of(const slurm::JobDetails& job) {
  return slurm::expand_hostlist(field_of(job, "NodeList")).value_or(std::vector<std::string>());
}

// Seconds that each of its nodes may take to boot; 0 where Slurm does not tell.
int64_t boot_limit(const slurm::JobDetails& job, const slurm::Cluster& cluster) {
  for (const slurm::Partition& partition : cluster.partitions) {
    if (partition.name == field_of(job, "Partition") && partition.resume_timeout_s) return *partition.resume_timeout_s;
  }
  return cluster.resume_timeout_s;
}

// Slurm hides cloud nodes that are powered down, unless PrivateData=cloud.
std::string unlisted_nodes(const slurm::JobDetails& job, const slurm::Cluster& cluster) {
  std::string names;
  if (cluster.nodes.empty()) return names;
  size_t count = 0;
  for (const std::string& name : nodes_of(job)) {
    if (find_node(cluster, name) != nullptr) continue;
    if (++count <= kMostLines) names += (names.empty() ? "" : ", ") + name;
  }
  return count > kMostLines ? fmt::format("{} and {} more", names, count - kMostLines) : names;
}

bool has_cloud_node(const slurm::JobDetails& job, const slurm::Cluster& cluster) {
  const auto names = nodes_of(job);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const slurm::Node* node = find_node(cluster, name);
    return node == nullptr ? !cluster.nodes.empty() : node->cloud;
  });
}

// As long as a node may take to boot, or longer.
bool waited_for_boot(const slurm::JobDetails& job, const slurm::Cluster& cluster) {
  const int64_t limit = boot_limit(job, cluster);
  return limit > 0 && slurm::parse_time_limit(field_of(job, "RunTime")).value_or(0) >= limit;
}

bool began(const WhyFacts& facts) {
  return std::any_of(facts.steps.begin(), facts.steps.end(), [](const slurm::StepEnd& step) { return !step.is_job(); });
}

bool accounting_says_nothing_ran(const WhyFacts& facts) {
  return !facts.steps.empty() && !began(facts);
}

}  // namespace

bool failed_to_boot(const slurm::Node& node, const slurm::JobDetails& job) {
  const bool said = std::any_of(kBootReasons.begin(), kBootReasons.end(),
                                [&](std::string_view reason) { return node.reason.find(reason) != std::string::npos; });
  // A reason from before or after is of another job's node.
  const auto start = slurm::parse_local_time(field_of(job, "StartTime")),
             end = slurm::parse_local_time(field_of(job, "EndTime"));
  return said && node.reason_time && start && end && *node.reason_time >= *start &&
         *node.reason_time <= *end + kReasonDelay_s;
}

bool never_booted(const slurm::JobDetails& job, const WhyFacts& facts) {
  if (job.state == "BOOT_FAIL") return true;
  if (job.state != "NODE_FAIL" || facts.cluster == nullptr) return false;
  for (const std::string& name : nodes_of(job)) {
    const slurm::Node* node = find_node(*facts.cluster, name);
    if (node != nullptr && failed_to_boot(*node, job)) return true;
  }
  return accounting_says_nothing_ran(facts) && has_cloud_node(job, *facts.cluster) &&
         waited_for_boot(job, *facts.cluster);
}

void add_boot_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const bool sure = never_booted(job, facts);
  if (sure && accounting_says_nothing_ran(facts)) {
    evidence.emplace_back("accounting has no step of it: nothing of it ran");
  }
  if (facts.cluster == nullptr) return;
  const slurm::Cluster& cluster = *facts.cluster;
  const std::string unlisted = unlisted_nodes(job, cluster);
  if (!unlisted.empty() && !began(facts)) {
    evidence.push_back(fmt::format(
        "Slurm does not list {} now: it hides cloud nodes that are powered down (PrivateData lacks cloud)", unlisted));
  }
  const bool perhaps = !unlisted.empty() && facts.steps.empty() && waited_for_boot(job, cluster);
  if (!sure && !perhaps) return;
  if (const int64_t limit = boot_limit(job, cluster); limit > 0) {
    evidence.push_back(fmt::format("a node has {} to boot (ResumeTimeout){}", in_time(limit),
                                   sure ? "" : ": if the job left no log, its node never booted"));
  }
  if (!cluster.resume_program.empty()) {
    evidence.push_back("the program that starts nodes is " + cluster.resume_program + " (ResumeProgram)");
  }
}

}  // namespace millrace::jobs
