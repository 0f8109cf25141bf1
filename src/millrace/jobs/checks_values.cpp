// SPDX-License-Identifier: Apache-2.0
// Values that sbatch refuses: SB34. What is taken and what is not was seen on Slurm 22.05
// (tests/e2e/test_job_lint_slurm.py).
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

bool is_word_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return equal_ignoring_case(word, text); });
}

// Digits and at most one of these letters.
bool is_count(std::string_view text, std::string_view letters) {
  if (!text.empty() && letters.find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  return parse_whole(text).has_value();
}

bool is_memory(std::string_view text) {
  const bool has_byte = text.size() > 1 && std::string_view("Bb").find(text.back()) != std::string_view::npos;
  if (has_byte && std::isdigit(static_cast<unsigned char>(text[text.size() - 2])) == 0) text.remove_suffix(1);
  return is_count(text, "KkMmGgTt");
}

bool is_gres(std::string_view text) {
  return text.find('=') == std::string_view::npos;
}

bool is_gpus(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  return std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
    const size_t colon = part.rfind(':');
    const std::string_view count = colon == std::string_view::npos ? part : part.substr(colon + 1);
    const bool digits = !count.empty() && std::isdigit(static_cast<unsigned char>(count[0])) != 0;
    if (!digits) return colon == std::string_view::npos;
    return is_count(count, "KkMmGgTt");
  });
}

// "1,3,5-9:2%4"
bool is_array(std::string_view text) {
  text = text.substr(0, text.find('%'));
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  bool any = false;
  for (const std::string_view part : split(text, ',')) {
    if (part.empty()) continue;
    const size_t dash = part.find('-'), colon = part.find(':');
    const auto first = parse_whole(part.substr(0, std::min(dash, colon)));
    if (!first || (dash == std::string_view::npos && colon != std::string_view::npos)) return false;
    if (dash != std::string_view::npos) {
      const auto last = parse_whole(part.substr(dash + 1, colon == std::string_view::npos ? colon : colon - dash - 1));
      if (!last || *last < *first) return false;
    }
    if (colon != std::string_view::npos && parse_whole(part.substr(colon + 1)).value_or(0) < 1) return false;
    any = true;
  }
  return any;
}

// "RB:USR1@60"
bool is_signal(std::string_view text) {
  constexpr int64_t kLongest = 65535;
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (!is_word_of(text.substr(0, colon), {"B", "R", "RB", "BR"})) return false;
    text.remove_prefix(colon + 1);
  }
  const size_t at = text.find('@');
  if (at != std::string_view::npos && parse_whole(text.substr(at + 1)).value_or(kLongest + 1) > kLongest) return false;
  std::string name = upper_case(text.substr(0, at));
  if (const auto number = parse_whole(name)) return *number > 0;
  if (name.starts_with("SIG")) name.erase(0, 3);
  return is_word_of(name, {"HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "CONT", "STOP", "TSTP",
                           "TTIN", "TTOU", "URG", "XCPU"});
}

bool is_exclusive(std::string_view text) {
  return is_word_of(text, {"user", "mcs", "topo"});  // topo since 24.11
}

bool is_nodes(std::string_view text) {
  if (text.starts_with('-')) return true;  // what it takes a negative number for, is not known here
  const size_t dash = text.find('-');
  return is_count(text.substr(0, dash), "KkMm") &&
         (dash == std::string_view::npos || is_count(text.substr(dash + 1), "KkMm"));
}

// "afterok:1:2_3+5,singleton"
bool is_dependency(std::string_view text) {
  std::string all(text);
  std::replace(all.begin(), all.end(), '?', ',');
  for (const std::string_view one : split(all, ',')) {
    const size_t colon = one.find(':');
    const std::string_view kind = one.substr(0, colon);
    if (equal_ignoring_case(kind, "singleton") || parse_whole(kind)) continue;
    if (colon == std::string_view::npos ||
        !is_word_of(kind, {"after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer", "expand"})) {
      return false;
    }
    for (const std::string_view id : split(one.substr(colon + 1), ':')) {
      if (id.empty() || std::isdigit(static_cast<unsigned char>(id[0])) == 0) return false;
    }
  }
  return true;
}

bool is_yes_or_no(std::string_view text) {
  return is_word_of(text, {"yes", "no"});
}

bool is_zero_or_one(std::string_view text) {
  return text == "0" || text == "1";
}

// "block:cyclic:fcyclic,Pack", "plane=4"
bool is_distribution(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  for (size_t i = 1; i < parts.size(); ++i) {
    if (!is_word_of(parts[i], {"Pack", "NoPack"})) return false;
  }
  if (parts[0].starts_with("plane=")) return parse_whole(parts[0].substr(6)).has_value();
  const std::vector<std::string_view> levels = split(parts[0], ':');
  for (size_t i = 0; i < levels.size(); ++i) {
    const bool known = is_word_of(levels[i], {"*", "block", "cyclic"}) ||
                       (i == 0 && is_word_of(levels[i], {"arbitrary", "Pack", "NoPack"})) ||
                       (i > 0 && is_word_of(levels[i], {"fcyclic"}));
    if (!known) return false;
  }
  return true;
}

bool is_hint(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  return std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
    return is_word_of(part, {"compute_bound", "memory_bound", "multithread", "nomultithread", "help"});
  });
}

// A word that begins it must be one that Slurm knows; of dates and hours only the letters are looked at.
bool is_time(std::string_view text) {
  size_t letters = 0;
  while (letters < text.size() && std::isalpha(static_cast<unsigned char>(text[letters])) != 0) ++letters;
  if (letters == 0) return std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!is_word_of(text.substr(0, letters), {"now", "today", "tomorrow", "midnight", "noon", "fika", "teatime"})) {
    return false;
  }
  const std::string_view rest = text.substr(letters);
  if (!rest.starts_with('+')) return true;
  const size_t unit = std::min(rest.find_first_not_of("0123456789", 1), rest.size());
  return unit > 1 &&
         (unit == rest.size() || is_word_of(rest.substr(unit), {"second", "seconds", "minute", "minutes", "hour",
                                                                "hours", "day", "days", "week", "weeks"}));
}

// Slurm takes a list in which it knows one.
bool is_mail_type(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  return std::any_of(parts.begin(), parts.end(), [](std::string_view part) {
    return is_word_of(part, {"NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT",
                             "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"});
  });
}

bool is_above_zero(std::string_view text) {
  return parse_whole(text) != 0;  // what is no number is told elsewhere
}

bool is_given(std::string_view text) {
  return !text.empty();
}

struct Value {
  std::string_view option;
  bool (*takes)(std::string_view);
  std::string_view wanted;
};
constexpr std::string_view kMemory = "Write a whole number with K, M, G or T, such as 80G.",
                           kNumber = "Write a number of 1 or more.", kTime = "Write now+1hour, 16:00 or a date.";
constexpr Value kValues[] = {
    {"mem", is_memory, kMemory},
    {"mem-per-cpu", is_memory, kMemory},
    {"mem-per-gpu", is_memory, kMemory},
    {"tmp", is_memory, kMemory},
    {"gres", is_gres, "Write gpu:2 or gpu:TYPE:2."},
    {"gpus", is_gpus, "Write 2 or TYPE:2."},
    {"gpus-per-node", is_gpus, "Write 2 or TYPE:2."},
    {"array", is_array, "Write 0-9, 1,3,5 or 0-9%2."},
    {"signal", is_signal, "Write B:USR1@300, with at most 65535 seconds."},
    {"exclusive", is_exclusive, "Write --exclusive alone, or =user."},
    {"nodes", is_nodes, "Write 2 or 2-4."},
    {"ntasks", is_above_zero, kNumber},
    {"ntasks-per-node", is_above_zero, kNumber},
    {"cpus-per-task", is_above_zero, kNumber},
    {"cpus-per-gpu", is_above_zero, kNumber},
    {"dependency", is_dependency, "Write afterok:ID, afterany:ID or singleton."},
    {"kill-on-invalid-dep", is_yes_or_no, "Write yes or no."},
    {"wait-all-nodes", is_zero_or_one, "Write 0 or 1."},
    {"distribution", is_distribution, "Write block, cyclic or plane=SIZE."},
    {"hint", is_hint, "Write compute_bound, memory_bound, multithread or nomultithread."},
    {"begin", is_time, kTime},
    {"deadline", is_time, kTime},
    {"mail-type", is_mail_type, "Write BEGIN, END, FAIL or ALL."},
    {"partition", is_given, "Name one, or leave the option out."},
};

void check_values(const Job& job, const JobContext&, FindingReport& report) {
  for (const Option& option : job.options().all()) {
    if (!option.known || !option.has_value || contains(option.value, "$")) continue;
    for (const Value& value : kValues) {
      if (value.option != option.name || value.takes(option.value)) continue;
      report.add("SB34", option.place, fmt::format("sbatch refuses --{}={}", option.name, option.value),
                 std::string(value.wanted));
    }
  }
}

constexpr JobCheck kValueChecks[] = {check_values};

}  // namespace

std::span<const JobCheck> value_checks() {
  return kValueChecks;
}

}  // namespace millrace::jobs
