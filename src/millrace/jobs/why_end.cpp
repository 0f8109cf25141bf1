// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "millrace/base/text/units.h"
#include "millrace/jobs/why_evidence.h"

namespace millrace::jobs {

namespace {

void add_step_line(const slurm::StepEnd& step, std::vector<std::string>& evidence) {
  if (step.is_job() || step.state == "COMPLETED") return;
  std::string line = fmt::format("step {} ({}) ended {}", step.id, step.name, step.state);
  if (!step.exit.empty()) line += " with " + step.exit;  // a node that died tells none
  if (step.most_memory_bytes && *step.most_memory_bytes > 0) {
    line += fmt::format("; a task of it was seen with {} of memory", format_bytes(*step.most_memory_bytes));
  }
  evidence.push_back(line);
}

}  // namespace

void add_end_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence) {
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) evidence.push_back(fmt::format("{} {}", what, value));
  };
  add("cancelled by", facts.cancelled_by);
  add("exit status and signal:", field_of(job, "ExitCode"));
  if (job.state == "TIMEOUT") add("its limit was", field_of(job, "TimeLimit"));
  // 22.05 prints TRES, 23.02 and later ReqTRES.
  const std::string now = field_of(job, "ReqTRES");
  if (job.state == "OUT_OF_MEMORY") add("it asked for", now.empty() ? field_of(job, "TRES") : now);
  add(never_booted(job, facts) ? "it held its nodes for" : "it ran for", field_of(job, "RunTime"));
  add("on", field_of(job, "NodeList"));
  if (job.state == "NODE_FAIL" || job.state == "BOOT_FAIL") {
    add_failed_nodes(job, facts.cluster, evidence);
    add_boot_lines(job, facts, evidence);
  }
  if (job.state == "PREEMPTED") add_preemptors(job, facts, evidence);
  if (job.state == "DEADLINE") add("its deadline was", field_of(job, "Deadline"));
  for (const slurm::StepEnd& step : facts.steps) add_step_line(step, evidence);
  if (field_of(job, "ExitCode") == "0:53") add("its log would be", job.output);
  add("the first error in its log:", facts.log_error);
}

}  // namespace millrace::jobs
