// SPDX-License-Identifier: Apache-2.0
// Checks of the shell code around the steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "millrace/base/utf8.h"
#include "millrace/formats/yaml/yaml.h"
#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

using shell::Part;
using shell::Scope;
using shell::Statement;
using shell::Word;
using StatementKind = Statement::Kind;

// The first expansion of one of `names` in a statement's own words.
const Part* expansion_of(const Statement& statement, std::initializer_list<std::string_view> names) {
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

void check_batch_ranks(const Job& job, const JobContext&, JobReport& report) {
  if (!job.is_batch() || job.runs_itself()) return;
  for (const Command& command : job.commands()) {
    if (command.in_step) continue;
    const Part* rank = expansion_of(*command.statement, {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"});
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

// What `set` does to errexit: 1 on, -1 off, 0 nothing.
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

bool may_fail_unnoticed(const Statement& before) {
  if (before.then != Statement::Then::kEnd || before.background || before.negated) return false;
  return before.kind == StatementKind::kCommand && !before.words.empty() && errexit_change(before) == 0 &&
         before.name() != "echo" && before.name() != "trap";
}

void check_lost_status(const Job& job, const JobContext&, JobReport& report) {
  bool errexit = !job.script().lines.empty() && contains(job.script().lines[0], "bash -e");
  for (const Command& command : job.commands()) {
    if (command.in_step) continue;  // another shell
    if (const int change = errexit_change(*command.statement); change != 0) errexit = change > 0;
    if (!errexit || command.scope.before == nullptr) continue;
    const Part* status = expansion_of(*command.statement, {"?"});
    if (status == nullptr || !may_fail_unnoticed(*command.scope.before)) continue;
    report.add("SB03", status->place,
               fmt::format("when the command of line {} fails, `set -e` ends the script before this",
                           command.scope.before->place.line));
  }
}

void check_continuations(const Job& job, const JobContext&, JobReport& report) {
  for (const Place& place : job.script().broken_continuations) {
    report.add("SB04", place, fmt::format("the command ends here, and line {} is run as another one", place.line + 1));
  }
}

// --- traps and monitors

// A trap that has to run while the step goes on: for the signal that Slurm sends before the limit. One that cleans up
// after TERM may as well run when the step has gone.
bool must_run_in_time(const Job& job, std::string_view trapped) {
  const std::string_view asked = job.options().value("signal");
  const auto bare = [](std::string_view name) { return name.starts_with("SIG") ? name.substr(3) : name; };
  if (bare(trapped) == "USR1" || bare(trapped) == "USR2") return true;
  const std::string_view name = asked.substr(0, asked.find('@'));
  return name.starts_with("B:") && bare(name.substr(2)) == bare(trapped);
}

void check_traps(const Job& job, const JobContext&, JobReport& report) {
  if (!job.is_batch()) return;
  const Statement* trap = nullptr;
  bool waits = false;
  for (const Command& command : job.commands()) {
    const auto& words = command.statement->words;
    if (command.statement->name() == "wait") waits = true;
    if (command.statement->name() != "trap" || words.size() < 3 || command.in_step) continue;
    for (size_t i = 2; i < words.size(); ++i) {
      if (must_run_in_time(job, words[i].text())) trap = command.statement;
    }
  }
  if (trap == nullptr) return;
  for (const Launch& launch : job.launches()) {
    const bool short_one = launch.command.empty() || launch.options.has("overlap") || !launch.training;
    if (short_one || launch.scope.substitution || launch.scope.condition) continue;
    if (!launch.statement->background) {
      report.add("SB08", launch.statement->place,
                 fmt::format("the trap of line {} runs only when this foreground step has ended", trap->place.line));
    } else if (!waits) {
      report.add("SB08", launch.statement->place,
                 "the step is in the background, and nothing waits for it: the script ends and takes it along");
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

// A step in it watches every node; a plain loop only the one it runs on.
bool starts_steps(const shell::Block& block) {
  bool found = false;
  shell::visit(block, [&](const Statement& each, const Scope&) { found = found || each.name() == "srun"; });
  return found;
}

void check_monitors(const Job& job, const JobContext&, JobReport& report) {
  if (!job.is_batch() || job.nodes() < 2) return;
  for (const Command& command : job.commands()) {
    const Statement& statement = *command.statement;
    if (!statement.background || command.in_step || command.scope.function != nullptr) continue;
    const auto function = job.functions().find(statement.name());
    const bool calls = function != job.functions().end() && statement.kind == StatementKind::kCommand;
    const shell::Block& body = calls ? function->second->body : statement.body;
    const bool loop = is_endless(statement) || has_endless_loop(body);
    const bool watcher = statement.name() == "nvidia-smi" || statement.name() == "dcgmi";
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

// Path parts behind the mount point: "/fsx4" 1, "/fsx/run/tmp" 3. What a job made for itself lies deep and has no glob.
bool is_wide(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') < 3 || contains(path, "*") || contains(path, "...");
}

void check_deletions(const Job& job, const JobContext&, JobReport& report) {
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

void check_uploads(const Job& job, const JobContext&, JobReport& report) {
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

// --- the first line, variables, letters

void check_first_line(const Job& job, const JobContext&, JobReport& report) {
  const auto& lines = job.script().lines;
  if (lines.empty()) return;
  const std::string& first = lines[0];
  if (!first.starts_with("#!")) {
    const auto later =
        std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("#!"); });
    const std::string where =
        later == lines.end() ? "" : fmt::format("; the #! of line {} is a comment there", later - lines.begin() + 1);
    const bool refused = job.is_batch();
    if (refused || later != lines.end()) {
      report.add("SB32", {1, 1},
                 (refused ? "sbatch refuses a script whose first line is not #!" : "the first line is not #!") + where,
                 "Make #!/bin/bash the first line.", refused ? std::nullopt : std::optional(Severity::kWarning));
    }
  } else if (const size_t comment = first.find(" #"); comment != std::string::npos) {
    report.add("SB32", {1, static_cast<int64_t>(first.find('#', comment)) + 1},
               "the kernel passes this comment to the interpreter as the name of a script, which then is not found "
               "(exit status 127)",
               "Put the comment on a line of its own.");
  }
  if (job.script().carriage_return) {
    report.add("SB32", *job.script().carriage_return,
               job.is_batch() ? "a Windows line end: sbatch refuses the script"
                              : "a Windows line end, which bash takes for a part of the last word",
               "Convert the file: dos2unix, or sed -i 's/\\r$//'.");
  }
}

bool is_known_environment(std::string_view name) {
  static constexpr std::array<std::string_view, 19> kPrefixes = {
      "SLURM", "SBATCH_", "SRUN_", "CUDA_", "NCCL_", "FI_", "TORCH",  "PYTORCH_", "OMP_",     "OMPI_",
      "AWS_",  "LC_",     "XDG_",  "BASH",  "PMIX_", "HF_", "WANDB_", "CONDA",    "MILLRACE_"};
  static const std::set<std::string_view> kNames = {"HOME",
                                                    "USER",
                                                    "PATH",
                                                    "PWD",
                                                    "OLDPWD",
                                                    "SHELL",
                                                    "LANG",
                                                    "TERM",
                                                    "HOSTNAME",
                                                    "TMPDIR",
                                                    "LOGNAME",
                                                    "LD_LIBRARY_PATH",
                                                    "PYTHONPATH",
                                                    "EDITOR",
                                                    "RANDOM",
                                                    "SECONDS",
                                                    "LINENO",
                                                    "PPID",
                                                    "UID",
                                                    "EUID",
                                                    "IFS",
                                                    "OPTARG",
                                                    "OPTIND",
                                                    "REPLY",
                                                    "FUNCNAME",
                                                    "PIPESTATUS",
                                                    "EPOCHSECONDS",
                                                    "EPOCHREALTIME",
                                                    "HOSTTYPE",
                                                    "MACHTYPE",
                                                    "OSTYPE",
                                                    "GROUPS",
                                                    "DIRSTACK",
                                                    "VIRTUAL_ENV",
                                                    "MANPATH",
                                                    "LIBRARY_PATH",
                                                    "CPATH",
                                                    "LD_PRELOAD",
                                                    "MODULEPATH",
                                                    "DISPLAY",
                                                    "PS1",
                                                    "EDITOR",
                                                    "MAIL",
                                                    "RANK",
                                                    "LOCAL_RANK",
                                                    "WORLD_SIZE",
                                                    "MASTER_ADDR",
                                                    "MASTER_PORT",
                                                    "ROCR_VISIBLE_DEVICES",
                                                    "GPU_DEVICE_ORDINAL",
                                                    "_",
                                                    "PYTHONHOME",
                                                    "SCRATCH",
                                                    "WORK",
                                                    "PROJECT"};
  return kNames.count(name) > 0 ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view each) { return name.starts_with(each); });
}

// One finding for all of them: where a script is filled in from outside there are many.
void check_undefined(const Job& job, const JobContext&, JobReport& report) {
  if (!job.not_followed().empty()) return;  // the names may come from there
  std::set<std::string_view> defined;
  for (const Definition& each : job.definitions()) defined.insert(each.assignment->name);
  std::vector<std::string> names;
  Place first;
  for (const Command& command : job.commands()) {
    shell::visit_words(*command.statement, [&](const Word& word) {
      for (const Part& part : word.parts) {
        if (part.kind != Part::Kind::kVariable || !shell::is_name(part.text) || command.in_step) continue;
        if (job.guarded_names().count(part.text) > 0 || defined.count(part.text) > 0 ||
            job.other_names().count(part.text) > 0 || is_known_environment(part.text))
          continue;
        if (std::find(names.begin(), names.end(), part.text) != names.end()) continue;
        if (names.empty()) first = part.place;
        names.push_back(part.text);
      }
    });
  }
  if (names.empty()) return;
  constexpr size_t kMost = 4;
  std::string list = names[0];
  for (size_t i = 1; i < std::min(names.size(), kMost); ++i) list += ", " + names[i];
  if (names.size() > kMost) list += fmt::format(" and {} more", names.size() - kMost);
  report.add("SB32", first, fmt::format("nothing in the script gives {} a value", list),
             fmt::format("Set it, or write ${{{}:?}} where it comes from outside.", names[0]), Severity::kWarning);
}

// A value that cannot be empty and holds nothing to be split at.
bool is_plain_value(const Job& job, const Part& part) {
  if (part.text.starts_with("SLURM_") || part.text == "?" || part.text == "!" || part.text == "#" || part.text == "$" ||
      part.operation == "#")
    return true;
  if (part.operation.starts_with(":?") || part.operation.starts_with("+") || part.operation.starts_with(":+"))
    return true;
  const auto value = job.value({"", part.place, {part}});
  if (value) return !value->empty() && value->find_first_of(" \t\n*?") == std::string::npos;
  const Definition* known = job.definition(part.text);
  if (known == nullptr) return false;
  const auto& parts = known->assignment->value.parts;
  // "/fsx/hosts_$SLURM_JOB_ID"
  bool has_text = false;
  const bool of_slurm = std::all_of(parts.begin(), parts.end(), [&](const Part& each) {
    has_text = has_text || (each.kind == Part::Kind::kText && !each.text.empty());
    return each.kind == Part::Kind::kText ? each.text.find_first_of(" \t\n*?") == std::string::npos
                                          : each.kind == Part::Kind::kVariable && each.text.starts_with("SLURM_");
  });
  if (of_slurm && has_text && job.other_names().count(part.text) == 0) return true;
  return parts.size() == 1 &&
         (parts[0].kind == Part::Kind::kArithmetic || (parts[0].kind == Part::Kind::kVariable && parts[0].text == "?"));
}

// `[ $N -gt 0 ]` with nothing in N is false, and bash says so.
bool compares_numbers(const Statement& statement) {
  return std::any_of(statement.words.begin(), statement.words.end(), [](const Word& word) {
    static const std::set<std::string_view> kOperators = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"};
    return kOperators.count(word.source) > 0;
  });
}

void check_unquoted(const Job& job, const JobContext&, JobReport& report) {
  static const std::set<std::string_view> kBites = {"rm", "mv", "cp", "cd", "[", "test", "rsync"};
  for (const Command& command : job.commands()) {
    if (kBites.count(command.statement->name()) == 0 || command.in_step) continue;
    if (compares_numbers(*command.statement)) continue;
    for (const Word& word : command.statement->words) {
      const auto bare = std::find_if(word.parts.begin(), word.parts.end(), [&](const Part& part) {
        const bool expands = part.kind == Part::Kind::kVariable || part.kind == Part::Kind::kCommand;
        return expands && !part.quoted && !(part.kind == Part::Kind::kVariable && is_plain_value(job, part));
      });
      if (bare == word.parts.end()) continue;
      report.add("SB32", bare->place,
                 fmt::format("{} is split at blanks, and gone when it is empty, before {} sees it", word.source,
                             command.statement->name()),
                 "Put it in double quotes.", Severity::kWarning);
      break;
    }
  }
}

void check_reading(const Job& job, const JobContext&, JobReport& report) {
  for (const shell::Problem& each : job.script().problems) report.add("SH01", each.place, each.message);
  for (const Statement* statement : job.not_followed()) {
    const std::string target = statement->words.size() > 1 ? statement->words[1].text() : std::string();
    const bool harmless = base_name(target) == "activate" || target.starts_with("/etc/") ||
                          contains(target, "conda.sh") || contains(target, "conda shell");
    if (!harmless)
      report.add("SH02", statement->place,
                 fmt::format("what {} {} sets and does is not known here", statement->name(), target));
  }
}

// --- letters

struct Lookalike {
  std::string_view bytes, name;
};
constexpr Lookalike kLookalikes[] = {{"\xEF\xBB\xBF", "a byte-order mark"},
                                     {"\xC2\xA0", "a no-break space"},
                                     {"\xE2\x80\x98", "a curly quote"},
                                     {"\xE2\x80\x99", "a curly quote"},
                                     {"\xE2\x80\x9C", "a curly quote"},
                                     {"\xE2\x80\x9D", "a curly quote"},
                                     {"\xE2\x80\x93", "a dash that is no hyphen"},
                                     {"\xE2\x80\x8B", "a zero-width space"}};

Place place_at(std::string_view text, size_t offset) {
  Place place{1, 1};
  for (const char c : text.substr(0, offset)) {
    if (c == '\n') {
      ++place.line;
      place.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++place.column;
    }
  }
  return place;
}

bool in_comment(const Job& job, Place place) {
  return std::any_of(job.script().comments.begin(), job.script().comments.end(), [&](const shell::Comment& comment) {
    return comment.place.line == place.line && comment.place.column <= place.column &&
           !comment.text.starts_with("#SBATCH");
  });
}

void check_letters(const Job& job, const JobContext&, JobReport& report) {
  const std::string& text = job.text();
  if (const size_t bad = utf8_valid_prefix(text); bad < text.size()) {
    return report.add("SH03", place_at(text, bad),
                      fmt::format("byte 0x{:02X} is not UTF-8", static_cast<unsigned char>(text[bad])),
                      "Convert the file to UTF-8 (iconv).");
  }
  const auto& lines = job.script().lines;
  const auto wrong = std::find_if(lines.begin(), lines.end(),
                                  [](const std::string& line) { return yaml::repaired_mojibake(line).has_value(); });
  if (wrong != lines.end()) {
    report.add("SH04", {wrong - lines.begin() + 1, 1},
               "these letters are UTF-8 that was read as a one-byte code page and encoded again",
               fmt::format("The line was: {}", *yaml::repaired_mojibake(*wrong)));
  }
  for (const Lookalike& each : kLookalikes) {
    for (size_t at = text.find(each.bytes); at != std::string::npos; at = text.find(each.bytes, at + 1)) {
      const Place place = place_at(text, at);
      if (in_comment(job, place)) continue;
      report.add("SH03", place, fmt::format("{}, which bash takes for a letter", each.name));
      break;
    }
  }
  if (const size_t nul = text.find('\0'); nul != std::string::npos)
    report.add("SB32", place_at(text, nul), "a NUL byte: sbatch refuses the script", "Remove it.");
}

constexpr JobCheck kBodyChecks[] = {check_batch_ranks, check_lost_status, check_continuations, check_traps,
                                    check_monitors,    check_deletions,   check_uploads,       check_first_line,
                                    check_undefined,   check_unquoted,    check_reading,       check_letters};

}  // namespace

std::span<const JobCheck> body_checks() {
  return kBodyChecks;
}

}  // namespace millrace::jobs
