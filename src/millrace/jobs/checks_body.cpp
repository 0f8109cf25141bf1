// SPDX-License-Identifier: Apache-2.0
// Checks of the shell code around the steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

using shell::Part;
using shell::Scope;
using shell::Statement;
using shell::Word;
using StatementKind = Statement::Kind;

// The first expansion of one of `names` in a statement's own words.
const Part* expansion_of(const Statement& statement, std::span<const std::string_view> names) {
  const Part* found = nullptr;
  shell::visit_words(statement, [&](const Word& word) {
    for (const Part& part : word.parts) {
      const bool named = std::find(names.begin(), names.end(), part.text) != names.end();
      if (found == nullptr && part.kind == Part::Kind::kVariable && named) found = &part;
    }
  });
  return found;
}

// accelerate and torchrun look at no machine rank when the rendezvous is c10d.
bool gives_ranks_itself(const Statement& statement) {
  bool found = false;
  shell::visit_words(statement, [&](const Word& word) {
    found = found || (contains(word.source, "rdzv") && contains(word.source, "c10d")) || word.source == "c10d";
  });
  return found;
}

constexpr std::array<std::string_view, 3> kRanks = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"};

// bash puts the values into a here-document whose end is not quoted, before srun or a task reads it.
void check_ranks_in_document(const shell::HereDocument& document, FindingReport& report) {
  if (!document.expands) return;
  for (const std::string_view name : kRanks) {
    for (const std::string& sign : {fmt::format("${}", name), fmt::format("${{{}", name)}) {
      const size_t at = document.body.find(sign);
      if (at == std::string::npos || (at > 0 && document.body[at - 1] == '\\')) continue;
      const std::string before = document.body.substr(0, at);
      const size_t line_begin = before.rfind('\n') + 1;  // 0 in the first line
      report.add("SB02",
                 Place{document.place.line + std::count(before.begin(), before.end(), '\n'),
                       static_cast<int64_t>(at - line_begin) + 1},
                 fmt::format("{} is put in here, by the batch shell, where it is always 0", name),
                 "Quote the word that ends the here-document: <<'END'.");
    }
  }
}

void check_batch_ranks(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch() || job.runs_itself()) return;
  for (const Command& command : job.commands()) {
    if (command.in_step) continue;
    for (const shell::Redirect& redirect : command.statement->redirects) {
      if (redirect.here_document) {
        check_ranks_in_document(job.script().here_documents[*redirect.here_document], report);
      }
    }
    const Part* rank = expansion_of(*command.statement, kRanks);
    if (rank == nullptr) continue;
    const bool guard = command.statement->name() == "[" || command.statement->kind == StatementKind::kTest;
    const bool unused = gives_ranks_itself(*command.statement);
    report.add("SB02", rank->place, fmt::format("{} is always 0 here, in the batch shell", rank->text),
               guard    ? "Leave the test out: the batch shell runs once, on the first node."
               : unused ? "Leave the rank out: the c10d rendezvous numbers the machines itself."
                        : "",
               guard || unused ? std::optional(Severity::kWarning) : std::nullopt);
  }
}

// --- set -e and $?

// What `set` does to errexit: 1 turns it on, -1 off, 0 leaves it.
int errexit_change(const Statement& statement) {
  if (statement.name() != "set") return 0;
  for (size_t i = 1; i < statement.words.size(); ++i) {
    const std::string text = statement.words[i].text();
    if (text == "errexit") return statement.words[i - 1].text() == "-o" ? 1 : -1;
    if (text.size() > 1 && text[1] != '-' && contains(text, "e")) {
      if (text[0] == '-') return 1;
      if (text[0] == '+') return -1;
    }
  }
  return 0;
}

bool pipefail_after(const Statement& set, bool before) {
  for (size_t i = 2; i < set.words.size(); ++i) {
    if (set.words[i].text() == "pipefail") return set.words[i - 1].text().starts_with('-');
  }
  return before;
}

bool may_fail_unnoticed(const Statement& before) {
  if (before.then != Statement::Then::kEnd || before.background || before.negated) return false;
  return before.kind == StatementKind::kCommand && !before.words.empty() && errexit_change(before) == 0 &&
         before.name() != "echo" && before.name() != "trap";
}

constexpr std::array<std::string_view, 1> kLastStatus = {"?"}, kPipeStatuses = {"PIPESTATUS"};

void check_lost_status(const Job& job, const JobContext&, FindingReport& report) {
  bool errexit = !job.script().lines.empty() && contains(job.script().lines[0], "bash -e");
  bool pipefail = false;
  for (const Command& command : job.commands()) {
    if (command.in_step) continue;  // another shell
    if (const int change = errexit_change(*command.statement); change != 0) errexit = change > 0;
    if (command.statement->name() == "set") pipefail = pipefail_after(*command.statement, pipefail);
    if (!errexit || command.scope.before == nullptr) continue;
    const Part* status = expansion_of(*command.statement, kLastStatus);
    // Without pipefail a pipe of which an early part fails goes on.
    if (status == nullptr && pipefail) status = expansion_of(*command.statement, kPipeStatuses);
    if (status == nullptr || !may_fail_unnoticed(*command.scope.before)) continue;
    report.add("SB03", status->place,
               fmt::format("when the command of line {} fails, `set -e` ends the script before this",
                           command.scope.before->place.line));
  }
}

void check_continuations(const Job& job, const JobContext&, FindingReport& report) {
  for (const Place& place : job.script().broken_continuations) {
    report.add("SB04", place, fmt::format("the command ends here, and line {} is run as another one", place.line + 1));
  }
}

// --- traps and monitors

// A trap that has to run while the step runs: for the signal that Slurm sends before the limit. One that cleans up
// after TERM may as well run when the step has gone.
bool must_run_in_time(const Job& job, std::string_view trapped) {
  const std::string_view asked = job.options().value("signal");
  const auto bare = [](std::string_view name) { return name.starts_with("SIG") ? name.substr(3) : name; };
  if (bare(trapped) == "USR1" || bare(trapped) == "USR2") return true;
  const std::string_view name = asked.substr(0, asked.find('@'));
  return name.starts_with("B:") && bare(name.substr(2)) == bare(trapped);
}

// Whether `block` holds the statement, itself or in a function that it calls.
bool reaches(const Job& job, const shell::Block& block, const Statement& wanted, int depth = 0) {
  constexpr int kDeepest = 8;
  bool found = false;
  shell::visit(block, [&](const Statement& each, const Scope&) {
    if (found || depth > kDeepest) return;
    const auto function = job.functions().find(each.name());
    const bool calls = each.kind == StatementKind::kCommand && function != job.functions().end();
    found = &each == &wanted || (calls && reaches(job, function->second->body, wanted, depth + 1));
  });
  return found;
}

// The step itself runs in the background, or a group, a subshell, a loop or a function around it.
bool runs_in_background(const Job& job, const Launch& launch) {
  if (launch.statement->background) return true;
  return std::any_of(job.commands().begin(), job.commands().end(), [&](const Command& command) {
    const Statement& statement = *command.statement;
    if (!statement.background || command.in_step) return false;
    if (statement.kind != StatementKind::kCommand) return reaches(job, statement.body, *launch.statement);
    const auto function = job.functions().find(statement.name());
    return function != job.functions().end() && reaches(job, function->second->body, *launch.statement);
  });
}

void check_traps(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch()) return;
  const Statement* trap = nullptr;
  for (const Command& command : job.commands()) {
    const auto& words = command.statement->words;
    if (command.statement->name() != "trap" || words.size() < 3 || command.in_step) continue;
    for (size_t i = 2; i < words.size(); ++i) {
      if (must_run_in_time(job, words[i].text())) trap = command.statement;
    }
  }
  if (trap == nullptr) return;
  for (const Launch& launch : job.launches()) {
    const bool short_one = launch.command.empty() || launch.options.has("overlap") || !launch.training;
    if (short_one || launch.scope.substitution || launch.scope.condition) continue;
    if (!runs_in_background(job, launch)) {
      report.add("SB08", launch.statement->place,
                 fmt::format("the trap of line {} runs only when this foreground step has ended", trap->place.line));
    }
  }
}

bool is_endless(const Statement& statement) {
  const bool loops = statement.kind == StatementKind::kWhile || statement.kind == StatementKind::kUntil;
  if (!loops || statement.condition.empty()) return false;
  const std::string name = statement.condition[0].name();
  return name == "true" || name == ":" || name == "false";
}

bool has_endless_loop(const shell::Block& block) {
  bool found = false;
  shell::visit(block, [&](const Statement& each, const Scope&) { found = found || is_endless(each); });
  return found;
}

void check_monitors(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch() || job.nodes() < 2) return;
  for (const Command& command : job.commands()) {
    const Statement& statement = *command.statement;
    if (!statement.background || command.in_step || command.scope.function != nullptr) continue;
    const auto function = job.functions().find(statement.name());
    const bool calls = function != job.functions().end() && statement.kind == StatementKind::kCommand;
    const shell::Block& body = calls ? function->second->body : statement.body;
    const bool loop = is_endless(statement) || has_endless_loop(body);
    const bool watcher = statement.name() == "nvidia-smi" || statement.name() == "dcgmi";
    // A step in it watches every node; a plain loop only the one it runs on.
    if ((loop && !starts_steps(body)) || watcher) {
      report.add("SB20", statement.place, fmt::format("this watches the first of {} nodes only", job.nodes()));
    }
  }
}

// --- files of others

bool is_private_path(std::string_view path) {
  constexpr std::string_view kPrivate[] = {"/tmp/", "/var/tmp/", "/dev/shm/", "/nvme", "/local", "/scratch/local"};
  return std::any_of(std::begin(kPrivate), std::end(kPrivate),
                     [&](std::string_view each) { return path.starts_with(each); });
}

// The folder of a shared file system that a word of `rm -r` or `find -delete` names; empty when it is none.
std::string shared_target(const Job& job, const Word& word) {
  const std::string known = job.known_prefix(word);
  const bool absolute = known.size() > 1 && known[0] == '/' && !is_private_path(known + "/");
  return absolute ? job.value(word).value_or(known + "...") : std::string();
}

// Path parts behind the mount point: "/fsx4" 1, "/fsx/run/tmp" 3. A job's private files lie deeper and are named
// without a glob.
bool is_wide(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') < 3 || contains(path, "*") || contains(path, "...");
}

void check_deletions(const Job& job, const JobContext&, FindingReport& report) {
  for (const Command& command : job.commands()) {
    const auto& words = command.statement->words;
    const std::string name = command.statement->name();
    const auto has = [&](std::string_view flag) {
      return std::any_of(words.begin(), words.end(), [&](const Word& word) { return word.source == flag; });
    };
    const bool recursive = std::any_of(words.begin(), words.end(), [](const Word& word) {
      return word.source == "--recursive" ||
             (word.source.size() > 1 && word.source[0] == '-' && word.source[1] != '-' &&
              word.source.find_first_of("rR") != std::string::npos);
    });
    const bool finds = name == "find" && (has("-delete") || has("rm"));
    for (size_t i = 1; i < words.size() && (finds || (name == "rm" && recursive)); ++i) {
      if (words[i].source.starts_with('-')) {
        if (finds) break;  // the paths of find stand first
        continue;
      }
      const std::string target = shared_target(job, words[i]);
      if (target.empty() || (!finds && !is_wide(target))) continue;
      report.add("SB24", words[i].place, fmt::format("{} deletes below {}, which other jobs see too", name, target));
    }
    const bool mirrors = name == "aws" && has("sync") && has("--delete");
    if (mirrors)
      report.add(
          "SB24", command.statement->place,
          "`aws s3 sync --delete` removes from the bucket whatever the local folder lacks, also when it is not mounted",
          "Use `millrace sync --delete`, which deletes only after it has seen the whole source, and --dry-run first.");
  }
}

bool uploads(const Statement& statement) {
  const auto& words = statement.words;
  const bool aws = statement.name() == "aws" && words.size() > 4 && words[1].text() == "s3" &&
                   (words[2].text() == "sync" || words[2].text() == "cp" || words[2].text() == "mv");
  return aws && !words[3].source.starts_with("s3://") && !words[3].source.starts_with("\"s3://");
}

void check_uploads(const Job& job, const JobContext&, FindingReport& report) {
  for (const Command& command : job.commands()) {
    const Statement& statement = *command.statement;
    if (job.is_batch() && uploads(statement) && command.scope.loop == nullptr &&
        statement.then != Statement::Then::kOr && !job.options().has("no-requeue")) {
      report.add("SB25", statement.place,
                 "this upload is not tried again when it fails, and is done again when the job is requeued");
    }
    const bool many = std::any_of(statement.words.begin(), statement.words.end(), [](const Word& word) {
      return word.source == "sync" || word.source == "--recursive";
    });
    for (size_t i = 1; i < statement.words.size() && many && statement.name() == "aws"; ++i) {
      const std::string& value = statement.words[i].source;
      const bool sum = contains(value, "md5=") || contains(value, "sha256=") || contains(value, "checksum=");
      if (sum && statement.words[i - 1].source == "--metadata")
        report.add("SB35", statement.words[i].place, "every object gets this one value");
    }
  }
}

constexpr JobCheck kBodyChecks[] = {check_batch_ranks, check_lost_status, check_continuations, check_traps,
                                    check_monitors,    check_deletions,   check_uploads};

}  // namespace

bool starts_steps(const shell::Block& block) {
  bool found = false;
  shell::visit(block, [&](const Statement& each, const Scope&) {
    const size_t at = skip_wrappers(each.words, 0);
    found = found || (at < each.words.size() && base_name(each.words[at].source) == "srun");
  });
  return found;
}

std::span<const JobCheck> body_checks() {
  return kBodyChecks;
}

}  // namespace millrace::jobs
