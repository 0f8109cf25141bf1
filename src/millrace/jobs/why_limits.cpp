// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "millrace/jobs/demand.h"
#include "millrace/jobs/why_evidence.h"

namespace millrace::jobs {

namespace {

bool has_word(std::string_view reason, std::string_view word) {
  return reason.find(word) != std::string_view::npos;
}

// The limits that a reason may mean, by their names in sacctmgr: "QOSMaxGRESPerUser" is MaxTRESPerUser.
std::vector<std::string_view> limits_of_reason(std::string_view reason) {
  if (has_word(reason, "Wall")) return {"MaxWall"};
  if (has_word(reason, "Submit")) return {"MaxSubmitJobsPerUser", "MaxSubmitJobs"};
  if (has_word(reason, "Grp")) return {has_word(reason, "Job") ? "GrpJobs" : "GrpTRES"};
  if (has_word(reason, "PerAccount")) return {has_word(reason, "Jobs") ? "MaxJobsPerAccount" : "MaxTRESPerAccount"};
  if (has_word(reason, "Jobs")) return {"MaxJobsPerUser", "MaxJobs"};
  if (has_word(reason, "Min")) return {"MinTRES"};
  if (has_word(reason, "PerUser")) return {"MaxTRESPerUser"};
  return {"MaxTRES"};
}

// What running jobs hold of a limit: those of its user, or all of its QOS or account.
void add_held(const slurm::JobDetails& job, const WhyFacts& facts, bool of_qos, std::vector<std::string>& evidence) {
  const bool of_account = !of_qos || has_word(job.reason, "PerAccount");
  const bool of_user = !has_word(job.reason, "Grp") && !has_word(job.reason, "PerAccount");
  const std::string qos = field_of(job, "QOS"), account = field_of(job, "Account");
  slurm::HeldResources sum;
  int64_t jobs = 0;
  for (const slurm::HeldResources& each : facts.held) {
    if ((of_qos && each.qos != qos) || (of_account && each.account != account)) continue;
    if (of_user && each.user != job.user) continue;
    ++jobs;
    sum.nodes += each.nodes;
    sum.cpus += each.cpus;
    sum.gpus += each.gpus;
  }
  std::string whose = of_user ? job.user + " with " : "";
  if (of_qos) whose += "QOS " + qos;
  if (of_account) whose += (of_qos ? " and account " : "account ") + account;
  evidence.push_back(fmt::format("{} of {} run{}: {} node{}, {} CPUs, {} GPUs",
                                 jobs == 1 ? "1 job" : fmt::format("{} jobs", jobs), whose, jobs == 1 ? "s" : "",
                                 sum.nodes, sum.nodes == 1 ? "" : "s", sum.cpus, sum.gpus));
}

// Whether running jobs count against the limit: it is not one of a single job.
bool is_shared(std::string_view reason) {
  return !has_word(reason, "PerJob") && !has_word(reason, "Wall") && !has_word(reason, "Min") &&
         !has_word(reason, "PerNode");
}

}  // namespace

bool is_limit(std::string_view reason) {
  return reason.starts_with("QOS") || reason.starts_with("Assoc") || has_word(reason, "PerAccount") ||
         has_word(reason, "PerUser");
}

void add_limit_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const bool of_qos = !job.reason.starts_with("Assoc");
  evidence.push_back(of_qos ? "its QOS is " + field_of(job, "QOS") : "its account is " + field_of(job, "Account"));
  if (facts.accounts == nullptr) return;
  const auto add = [&](const std::string& owner, const slurm::Limits& limits) {
    for (const std::string_view name : limits_of_reason(job.reason)) {
      if (const auto limit = limits.find(name); limit != limits.end()) {
        evidence.push_back(fmt::format("{} has {} {}", owner, name, limit->second));
      }
    }
  };
  if (const slurm::Qos* qos = facts.accounts->find_qos(field_of(job, "QOS")); of_qos && qos != nullptr) {
    add("QOS " + qos->name, qos->limits);
  }
  for (const slurm::Association& each : facts.accounts->associations) {
    if (!of_qos && each.account == field_of(job, "Account")) add("your use of account " + each.account, each.limits);
  }
  for (const slurm::AccountLimits* each : facts.accounts->lineage(field_of(job, "Account"))) {
    if (!of_qos) add("account " + each->account, each->limits);
  }
  if (is_shared(job.reason)) add_held(job, facts, of_qos, evidence);
  const bool of_time = has_word(job.reason, "Wall");
  evidence.push_back(of_time ? "its limit is " + field_of(job, "TimeLimit")
                             : "it asks for " + demand_text(demand_of(job)));
}

}  // namespace millrace::jobs
