// SPDX-License-Identifier: Apache-2.0
// Checks of what bash reads: the first line, variables, quotes, letters.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "millrace/base/text/utf8.h"
#include "millrace/formats/yaml/yaml.h"
#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

using shell::Part;
using shell::Statement;
using shell::Word;

// --- the first line, variables

void check_first_line(const Job& job, const JobContext&, FindingReport& report) {
  const auto& lines = job.script().lines;
  if (job.text().find_first_not_of(" \t\r\n") == std::string::npos)
    return report.add("SB32", Place{1, 1}, "the script is empty: sbatch refuses it");
  const std::string& first = lines[0];
  if (first.starts_with("\xEF\xBB\xBF#!"))
    return report.add("SB32", Place{1, 1},
                      "a byte-order mark stands before #!: sbatch says that this does not look like a batch script",
                      "Remove it: sed -i '1s/^\\xEF\\xBB\\xBF//'.");
  if (!first.starts_with("#!")) {
    const auto later =
        std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("#!"); });
    const std::string where =
        later == lines.end() ? "" : fmt::format("; the #! of line {} is a comment there", later - lines.begin() + 1);
    const bool refused = job.is_batch();
    if (refused || later != lines.end()) {
      report.add("SB32", Place{1, 1},
                 (refused ? "sbatch refuses a script whose first line is not #!" : "the first line is not #!") + where,
                 "Make #!/bin/bash the first line.", refused ? std::nullopt : std::optional(Severity::kWarning));
    }
  } else if (const size_t comment = first.find(" #"); comment != std::string::npos) {
    report.add("SB32", Place{1, static_cast<int64_t>(first.find('#', comment)) + 1},
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
void check_undefined(const Job& job, const JobContext&, FindingReport& report) {
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

// A value that cannot be empty and that bash does not split.
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

// `[ $N -gt 0 ]` with an empty N is false, and bash reports an error.
bool compares_numbers(const Statement& statement) {
  return std::any_of(statement.words.begin(), statement.words.end(), [](const Word& word) {
    static const std::set<std::string_view> kOperators = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"};
    return kOperators.count(word.source) > 0;
  });
}

void check_unquoted(const Job& job, const JobContext&, FindingReport& report) {
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

void check_reading(const Job& job, const JobContext&, FindingReport& report) {
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
                                     {"\xE2\x80\x93", "a dash that is not a hyphen"},
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

void check_letters(const Job& job, const JobContext&, FindingReport& report) {
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
    report.add("SH04", Place{wrong - lines.begin() + 1, 1},
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

constexpr JobCheck kTextChecks[] = {check_first_line, check_undefined, check_unquoted, check_reading, check_letters};

}  // namespace

std::span<const JobCheck> text_checks() {
  return kTextChecks;
}

}  // namespace millrace::jobs
