// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "millrace/jobs/checks.h"
#include "millrace/jobs/env_lint.h"
#include "millrace/jobs/suppressions.h"

namespace millrace::jobs {

namespace {

EnvContext env_context(const Job& job, const JobContext& context) {
  EnvContext env{.nodes = job.nodes()};
  const ClusterFacts::Partition* partition = partition_of(job, context);
  if (partition != nullptr && partition->known_instance) {
    env.has_efa = partition->efa_interfaces > 0;
    env.instance = partition->instance;
  }
  return env;
}

std::vector<Finding> lint_job(const Job& job, const JobContext& context) {
  FindingReport report(all_job_rules(), job.file());
  for (const auto checks : {option_checks(), value_checks(), pair_checks(), step_checks(), meeting_checks(),
                            body_checks(), end_checks(), text_checks()}) {
    for (const JobCheck check : checks) check(job, context, report);
  }
  std::vector<Finding> findings = report.take();
  const auto env = check_environment(job.file(), variables_of(job), env_context(job, context));
  findings.insert(findings.end(), env.begin(), env.end());
  return findings;
}

// Where a job writes its checkpoints, and the word that says so.
struct CheckpointFolder {
  const Job* job;
  std::string path;
  Place place;
};

std::vector<CheckpointFolder> checkpoint_folders(const Job& job) {
  static constexpr std::string_view kNames[] = {"--checkpoint-dir", "--checkpoint_dir", "--ckpt-dir",   "--ckpt_dir",
                                                "--save-dir",       "--save_dir",       "--checkpoints"};
  std::vector<CheckpointFolder> out;
  for (const Launch& launch : job.launches()) {
    std::string value;
    const shell::Word* word = argument_after(launch.command, kNames, value, job);
    if (word != nullptr && job.value(*word)) out.push_back({&job, value, word->place});
  }
  return out;
}

// SB23: two jobs of different names, one folder.
void compare_jobs(const std::deque<Job>& jobs, std::vector<std::vector<Finding>>& findings) {
  std::map<std::string, CheckpointFolder> first;
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const CheckpointFolder& each : checkpoint_folders(jobs[i])) {
      const auto [seen, added] = first.emplace(each.path, each);
      const Job& other = *seen->second.job;
      if (added || other.options().value("job-name") == jobs[i].options().value("job-name")) continue;
      FindingReport report(all_job_rules(), jobs[i].file());
      report.add("SB23", each.place,
                 fmt::format("{} is where {} (line {}) writes its checkpoints too", each.path, other.file(),
                             seen->second.place.line));
      findings[i].push_back(report.take().front());
    }
  }
}

}  // namespace

void apply_job_suppressions(const Job& job, std::span<const Rule> known, std::vector<Finding>& findings) {
  std::vector<Suppression> suppressions;
  for (const shell::Comment& comment : job.script().comments) {
    std::string_view text = comment.text;
    // Behind an option: `#SBATCH --gres=gpu:8  # millrace: ignore SB10 -- ...` is one comment for the shell.
    const bool option = text.starts_with("#SBATCH");
    if (option) {
      const size_t mark = text.find("# millrace:");
      if (mark == std::string_view::npos) continue;
      text.remove_prefix(mark);
    }
    auto suppression = parse_suppression(text, comment.place.line, comment.place.column, comment.alone && !option);
    if (!suppression) continue;
    for (const Command& command : job.commands()) {
      const shell::Statement& statement = *command.statement;
      const bool simple = statement.kind == shell::Statement::Kind::kCommand;
      const bool meant = statement.place.line == suppression->first_line ||
                         (!comment.alone && statement.last_line == comment.place.line);
      if (!simple || !meant) continue;
      suppression->first_line = std::min(suppression->first_line, statement.place.line);
      suppression->last_line = std::max(suppression->last_line, statement.last_line);
    }
    suppressions.push_back(*std::move(suppression));
  }
  apply_suppressions(findings, suppressions, known, job.file());
}

std::vector<Finding> lint_jobs(std::span<const ScriptFile> files, const JobContext& context) {
  std::deque<Job> jobs;
  std::vector<std::vector<Finding>> each;
  for (const ScriptFile& file : files) {
    const Job& job = jobs.emplace_back(file.name, file.text);
    each.push_back(lint_job(job, context));
  }
  compare_jobs(jobs, each);
  std::vector<Finding> all;
  for (size_t i = 0; i < jobs.size(); ++i) {
    apply_job_suppressions(jobs[i], rules_of_scripts(), each[i]);
    sort_findings(each[i]);
    all.insert(all.end(), each[i].begin(), each[i].end());
  }
  return all;
}

}  // namespace millrace::jobs
