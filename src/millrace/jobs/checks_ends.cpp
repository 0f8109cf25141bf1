// SPDX-License-Identifier: Apache-2.0
// Steps beside each other and the status in which a job ends: SB39, SB40, SB45, SB46.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

using shell::Scope;
using shell::Statement;
using shell::Word;
using StatementKind = Statement::Kind;

// A statement in the background that starts a step: an srun, a group or loop of them, a call of a function with one.
bool is_background_step(const Job& job, const Command& command) {
  const Statement& statement = *command.statement;
  if (!statement.background || command.in_step || command.scope.substitution) return false;
  if (statement.name() == "srun") return true;
  if (statement.kind != StatementKind::kCommand) return starts_steps(statement.body);
  const auto function = job.functions().find(statement.name());
  return function != job.functions().end() && starts_steps(function->second->body);
}

// What takes no time: the script goes on to its end.
bool is_over_at_once(const Statement& statement) {
  if (statement.kind != StatementKind::kCommand)
    return statement.kind == StatementKind::kFunction || statement.kind == StatementKind::kTest;
  return statement.words.empty() ||
         is_one_of(statement.name(), {"echo", "printf", "exit", "trap", "date", "export", "set", "true", ":", "unset",
                                      "cd", "disown", "hostname", "[", "test"});
}

// --- SB39

void check_unwaited(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch() || job.runs_itself()) return;
  const Statement* step = nullptr;
  for (const Command& command : job.commands()) {
    const Statement& statement = *command.statement;
    if (command.in_step || command.scope.substitution) continue;
    if (is_one_of(statement.name(), {"wait", "fg", "source", ".", "exec"})) return;
    if (command.scope.function != nullptr) continue;  // runs where it is called
    if (is_background_step(job, command)) {
      if (step == nullptr) step = &statement;
    } else if (step != nullptr && !statement.background && !is_over_at_once(statement) &&
               statement.place.line > step->last_line) {
      return;  // the script is busy with something else meanwhile
    }
  }
  if (step != nullptr)
    report.add("SB39", step->place, "nothing waits for this step: the script ends and Slurm ends the step with it");
}

// --- SB40

// Takes all CPUs of the job's nodes, as a step does unless it says otherwise.
bool takes_everything(const Options& options) {
  return std::none_of(options.all().begin(), options.all().end(), [](const Option& option) {
    return is_one_of(option.name, {"overlap", "exact", "exclusive", "cpus-per-task", "threads-per-core", "nodelist",
                                   "nodes", "relative", "exclude", "het-group", "jobid", "core-spec", "gres", "gpus",
                                   "mem", "gpus-per-node", "gpus-per-task", "mem-per-cpu", "mem-per-gpu"});
  });
}

bool overlaps_by_environment(const Job& job) {
  return std::any_of(job.definitions().begin(), job.definitions().end(), [](const Definition& each) {
    return each.assignment->name == "SLURM_OVERLAP" || each.assignment->name == "SLURM_EXACT";
  });
}

const Launch* launch_of(const Job& job, const Statement& statement) {
  const auto found = std::find_if(job.launches().begin(), job.launches().end(),
                                  [&](const Launch& each) { return each.statement == &statement; });
  return found == job.launches().end() ? nullptr : &*found;
}

void check_second_step(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch() || overlaps_by_environment(job)) return;
  const Launch* running = nullptr;
  for (const Command& command : job.commands()) {
    const Statement& statement = *command.statement;
    if (command.in_step || command.scope.function != nullptr) continue;
    if (is_one_of(statement.name(), {"wait", "kill", "fg"})) running = nullptr;
    const Launch* launch = launch_of(job, statement);
    if (launch == nullptr || !launch->srun || launch->command.empty()) continue;
    const bool whole = takes_everything(launch->options);
    if (running != nullptr && whole && statement.then != Statement::Then::kPipe) {
      report.add("SB40", statement.place,
                 fmt::format("the step of line {} has all CPUs of the job, so this one waits for its end",
                             running->statement->place.line));
    } else if (whole && statement.background && command.scope.loop != nullptr) {
      report.add("SB40", statement.place, "each step of this loop takes all CPUs of the job, so they run one by one");
    }
    if (whole && statement.background) running = launch;
  }
}

// --- SB45

bool names_pipefail(const Job& job) {
  const bool set = std::any_of(job.commands().begin(), job.commands().end(), [](const Command& command) {
    const auto& words = command.statement->words;
    return command.statement->name() == "set" &&
           std::any_of(words.begin(), words.end(), [](const Word& word) { return word.source == "pipefail"; });
  });
  const bool first_line = !job.script().lines.empty() && contains(job.script().lines[0], "pipefail");
  return set || first_line || contains(job.text(), "PIPESTATUS");
}

bool turns_on_errexit(const Statement& statement) {
  return statement.name() == "set" && std::any_of(statement.words.begin(), statement.words.end(), [](const Word& word) {
           return word.source == "errexit" || (word.source.size() > 1 && word.source[0] == '-' &&
                                               word.source[1] != '-' && contains(word.source, "e"));
         });
}

// The statement behind `statement` in its block; null at its end.
const Statement* next_of(const Job& job, const Statement& statement) {
  const auto found = std::find_if(job.commands().begin(), job.commands().end(),
                                  [&](const Command& command) { return command.scope.before == &statement; });
  return found == job.commands().end() ? nullptr : found->statement;
}

bool reads_status(const Statement& statement) {
  bool found = false;
  shell::visit_words(statement, [&](const Word& word) {
    for (const shell::Part& part : word.parts) {
      found = found || (part.kind == shell::Part::Kind::kVariable && part.text == "?");
    }
  });
  return found;
}

void check_pipes(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch() || names_pipefail(job)) return;
  const bool errexit = std::any_of(job.commands().begin(), job.commands().end(), [](const Command& command) {
    return !command.in_step && turns_on_errexit(*command.statement);
  });
  for (const Launch& launch : job.launches()) {
    if (!launch.training || launch.statement->then != Statement::Then::kPipe || launch.scope.substitution) continue;
    const Statement* last = launch.statement;
    while (last != nullptr && last->then == Statement::Then::kPipe) last = next_of(job, *last);
    if (last == nullptr) continue;
    const Statement* behind = next_of(job, *last);
    while (behind != nullptr && behind->kind == StatementKind::kCommand && !reads_status(*behind) &&
           is_one_of(behind->name(), {"echo", "date"})) {
      behind = next_of(job, *behind);
    }
    const bool used = errexit || launch.scope.condition || last->background || last->then != Statement::Then::kEnd ||
                      behind == nullptr || reads_status(*behind);
    if (!used) continue;
    const std::string name = last->name().empty() ? "the last command" : last->name();
    report.add(
        "SB45", launch.statement->place,
        fmt::format("the status of this pipe is that of {}: a training that fails looks like one that succeeds", name));
  }
}

// --- SB46

void check_bare_wait(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch()) return;
  const Statement* bare = nullptr;
  for (const Command& command : job.commands()) {
    const Statement& statement = *command.statement;
    if (command.in_step || statement.name() != "wait") continue;
    if (statement.words.size() > 1) return;  // some are waited for by their process
    bare = &statement;
  }
  if (bare == nullptr) return;
  for (const Launch& launch : job.launches()) {
    const bool meant = launch.srun && launch.training && launch.statement->background &&
                       launch.statement->place.line <= bare->place.line;
    if (!meant) continue;
    report.add(
        "SB46", bare->place,
        fmt::format("`wait` alone ends with 0 whatever the step of line {} ended with", launch.statement->place.line));
    return;
  }
}

constexpr JobCheck kEndChecks[] = {check_unwaited, check_second_step, check_pipes, check_bare_wait};

}  // namespace

std::span<const JobCheck> end_checks() {
  return kEndChecks;
}

}  // namespace millrace::jobs
