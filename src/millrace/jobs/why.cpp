// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/why.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/strings.h"
#include "millrace/jobs/demand.h"
#include "millrace/jobs/ledger.h"
#include "millrace/jobs/why_evidence.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

namespace {

using slurm::JobDetails;

const ReasonRule* find_reason(std::span<const ReasonRule> rules, std::string_view reason) {
  const std::string as_printed(reason);
  std::string spaced = as_printed;  // scontrol prints sentences with underscores
  std::replace(spaced.begin(), spaced.end(), '_', ' ');
  for (const ReasonRule& rule : rules) {
    const std::string pattern(rule.reason);
    if (::fnmatch(pattern.c_str(), as_printed.c_str(), 0) == 0 || ::fnmatch(pattern.c_str(), spaced.c_str(), 0) == 0) {
      return &rule;
    }
  }
  return nullptr;
}

// Waits for something else than nodes: another job, its time, or somebody who releases it.
bool cannot_start_yet(const slurm::JobState& job) {
  constexpr std::string_view kReasons[] = {"Dependency", "DependencyNeverSatisfied", "BeginTime", "JobHeldUser",
                                           "JobHeldAdmin"};
  return std::find(std::begin(kReasons), std::end(kReasons), job.reason) != std::end(kReasons);
}

// Jobs of the partition that wait for nodes, and have come before: squeue lists in order of priority.
void add_jobs_ahead(const JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const std::string own = job.array.empty() ? job.number : job.array;
  std::string ids;
  size_t ahead = 0;
  for (const slurm::JobState& other : facts.queue) {
    if (other.base_id == own) break;
    if (other.state != "PENDING" || other.partition != field_of(job, "Partition")) continue;
    if (cannot_start_yet(other)) continue;
    if (++ahead <= kMostLines) ids += fmt::format("{}{} ({})", ids.empty() ? "" : ", ", other.id, other.user);
  }
  evidence.push_back(fmt::format("its priority is {}", field_of(job, "Priority")));
  if (ahead > 0)
    evidence.push_back(fmt::format(
        "{}: {}", ahead == 1 ? "1 waiting job comes first" : fmt::format("{} waiting jobs come first", ahead), ids));
}

// "afterok:12(unfulfilled)" names job 12.
void add_dependency_lines(const JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const std::string dependency = field_of(job, "Dependency");
  evidence.push_back("it depends on " + dependency);
  std::set<std::string> ids;
  for (size_t at = 0; at < dependency.size(); ++at) {
    const bool begins = at > 0 && dependency[at - 1] == ':' && is_digit(dependency[at]);
    if (begins) ids.insert(std::to_string(front_number(std::string_view(dependency).substr(at))));
  }
  for (const slurm::JobState& other : facts.queue) {
    if (ids.count(other.base_id) == 0) continue;
    evidence.push_back(fmt::format("job {} ({}) is {}{}", other.id, other.name, other.state,
                                   other.reason.empty() ? "" : " (" + other.reason + ")"));
  }
}

void add_begin_lines(const JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const auto begin = slurm::parse_local_time(field_of(job, "EligibleTime")),
             start = slurm::parse_local_time(field_of(job, "StartTime"));
  const auto at = begin ? begin : start;
  if (at && facts.now > 0 && *at > facts.now) {
    evidence.push_back(fmt::format("it may begin at {}, in {}", utc_time(*at), in_time(*at - facts.now)));
  }
  if (job.restarts > 0) evidence.push_back(fmt::format("it was requeued: this is start {}", job.restarts + 1));
  add_preemptors(job, facts, evidence);
}

void add_estimate(const JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const auto start = slurm::parse_local_time(field_of(job, "StartTime"));
  if (start && *start > facts.now) evidence.push_back("Slurm expects it to start at " + utc_time(*start));
}

void add_waiting_evidence(const JobDetails& job, const WhyFacts& facts, Explanation& why) {
  const std::string& reason = job.reason;
  const bool of_nodes = reason == "Resources" || reason == "BadConstraints";
  if (of_nodes && facts.cluster != nullptr) add_node_lines(job, *facts.cluster, why.evidence);
  if (reason.starts_with("Partition") && facts.cluster != nullptr)
    add_partition_lines(job, *facts.cluster, why.evidence);
  if ((reason.starts_with("ReqNodeNotAvail") || reason.starts_with("Node")) && facts.cluster != nullptr) {
    add_closed_nodes(job, *facts.cluster, why.evidence);
  }
  if (of_nodes || reason.starts_with("ReqNodeNotAvail") || reason.starts_with("Node") ||
      reason.starts_with("Reservation")) {
    add_reservation_lines(job, facts, why.evidence);
  }
  if (reason == "Priority") add_jobs_ahead(job, facts, why.evidence);
  if (reason.starts_with("Dependency")) add_dependency_lines(job, facts, why.evidence);
  if (reason == "BeginTime") add_begin_lines(job, facts, why.evidence);
  if (is_limit(reason)) add_limit_lines(job, facts, why.evidence);
  if (why.outlook == Outlook::kWaits && reason != "BeginTime") add_estimate(job, facts, why.evidence);
}

// The fix with the job's number in place of the word ID.
std::string with_id(std::string_view fix, const std::string& id) {
  const auto is_letter = [&](size_t at) {
    return at < fix.size() && std::isalnum(static_cast<unsigned char>(fix[at])) != 0;
  };
  std::string text;
  for (size_t at = 0; at < fix.size(); ++at) {
    const bool word = fix.substr(at, 2) == "ID" && !is_letter(at + 2) && (at == 0 || !is_letter(at - 1));
    if (word) {
      text += id;
      ++at;
    } else {
      text += fix[at];
    }
  }
  return text;
}

const ReasonRule* end_rule(const JobDetails& job, const WhyFacts& facts) {
  // Slurm says NODE_FAIL of most jobs whose nodes did not boot.
  if (never_booted(job, facts)) return find_reason(end_states(), "BOOT_FAIL");
  const ReasonRule* rule = nullptr;
  // A failure is told best by its exit status; other states say more themselves.
  if (job.state == "FAILED") rule = find_reason(end_states(), "EXIT " + field_of(job, "ExitCode"));
  return rule != nullptr ? rule : find_reason(end_states(), job.state);
}

// A request that no node of the partition can hold waits with the reason Resources in some versions.
bool fits_nowhere(const JobDetails& job, const WhyFacts& facts) {
  if (job.reason != "Resources" || facts.cluster == nullptr || facts.cluster->nodes.empty()) return false;
  const Demand demand = demand_of(job);
  const auto could = std::count_if(
      facts.cluster->nodes.begin(), facts.cluster->nodes.end(),
      [&](const slurm::Node& node) { return is_in(node, field_of(job, "Partition")) && fits(node, demand, false); });
  return could < demand.nodes;
}

}  // namespace

std::string field_of(const JobDetails& job, std::string_view name) {
  const auto found = job.fields.find(name);
  return found == job.fields.end() || found->second == "(null)" ? "" : found->second;
}

std::string in_time(int64_t seconds) {
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds % 3600 / 60, seconds % 60);
}

std::string_view outlook_name(Outlook outlook) {
  constexpr std::array<std::string_view, 5> kNames{"waits", "never", "runs", "done", "failed"};
  return kNames[static_cast<size_t>(outlook)];
}

Explanation explain(const JobDetails& job, const WhyFacts& facts) {
  Explanation why{.id = job.id(), .state = job.state, .reason = job.reason};
  if (!job.waits() && !slurm::is_ended(job.state)) {
    why.outlook = Outlook::kRuns;
    why.meaning = job.state == "RUNNING" ? "It runs." : "It is " + job.state + ".";
    why.evidence.push_back(fmt::format("on {}, for {} of {}", field_of(job, "NodeList"), field_of(job, "RunTime"),
                                       field_of(job, "TimeLimit")));
    return why;
  }
  const ReasonRule* rule = job.waits() ? find_reason(waiting_reasons(), job.reason) : end_rule(job, facts);
  why.outlook = rule != nullptr ? rule->outlook : job.waits() ? Outlook::kWaits : Outlook::kFailed;
  why.meaning = rule != nullptr ? rule->meaning : "Slurm gives a reason that Millrace does not know.";
  const std::string number = job.array.empty() ? job.number : job.array;
  why.fix = rule != nullptr ? with_id(rule->fix, number) : "squeue(1), JOB REASON CODES, explains it.";
  if (!job.waits()) {
    if (why.outlook == Outlook::kFailed) add_end_lines(job, facts, why.evidence);
    return why;
  }
  if (fits_nowhere(job, facts)) {
    why.outlook = Outlook::kNever;
    why.meaning = "Too few nodes of the partition could hold it, even if all were free.";
    why.fix = "Lower what it asks of a node, or the nodes; `millrace plan gpus --from-slurm` lists what there is.";
  }
  add_waiting_evidence(job, facts, why);
  return why;
}

std::string first_error(std::string_view log) {
  static constexpr std::array<std::string_view, 9> kConsequences{"srun: error",
                                                                 "slurmstepd: error",
                                                                 "ChildFailedError",
                                                                 "Connection closed by",
                                                                 "Connection reset by peer",
                                                                 "torch.distributed.elastic",
                                                                 "NCCL WARN",
                                                                 "Broken pipe",
                                                                 "SignalException"};
  static constexpr std::array<std::string_view, 10> kSigns{"Error:",
                                                           "Exception:",
                                                           "error:",
                                                           "ERROR",
                                                           "Segmentation fault",
                                                           "No such file or directory",
                                                           "command not found",
                                                           "Out of memory",
                                                           "out of memory",
                                                           "Killed"};
  const auto has_any = [](std::string_view line, auto& words) {
    return std::any_of(std::begin(words), std::end(words),
                       [&](std::string_view word) { return line.find(word) != std::string_view::npos; });
  };
  while (!log.empty()) {
    const std::string_view line = take_line(log);
    if (has_any(line, kSigns) && !has_any(line, kConsequences)) return std::string(line.substr(0, 300));
  }
  return {};
}

}  // namespace millrace::jobs
