// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/edit_distance.h"
#include "millrace/base/text/units.h"

namespace millrace::slurm {

namespace {

enum class Takes { kNothing, kValue, kMaybe };

struct KnownOption {
  std::string_view name;
  char letter;  // '\0': none
  Takes takes;
};

constexpr auto N = Takes::kNothing, V = Takes::kValue, M = Takes::kMaybe;  // short, for the tables

// The options of sbatch 22.05 to 26.05, from its manual page and slurm_opt.c; the second table has those that only srun
// takes. Container options are pyxis's, which adds them to both.
// clang-format off
constexpr KnownOption kSbatch[] = {
    {"account", 'A', V}, {"acctg-freq", 0, V}, {"array", 'a', V}, {"autocomplete", 0, V}, {"batch", 0, V}, {"bb", 0, V}, {"bbf", 0, V},
    {"begin", 'b', V}, {"chdir", 'D', V}, {"cluster", 0, V}, {"cluster-constraint", 0, V}, {"clusters", 'M', V}, {"comment", 0, V},
    {"consolidate-segments", 0, N},
    {"constraint", 'C', V}, {"container", 0, V}, {"container-id", 0, V}, {"container-type", 0, V}, {"context", 0, V}, {"contiguous", 0, N}, {"core-spec", 'S', V},
    {"cores-per-socket", 0, V}, {"cpu-freq", 0, V}, {"cpus-per-gpu", 0, V}, {"cpus-per-task", 'c', V},
    {"deadline", 0, V}, {"delay-boot", 0, V}, {"dependency", 'd', V}, {"distribution", 'm', V}, {"error", 'e', V},
    {"exclude", 'x', V}, {"exclusive", 0, M}, {"export", 0, V}, {"export-file", 0, V}, {"external", 0, N}, {"extra", 0, V},
    {"extra-node-info", 'B', V}, {"get-user-env", 0, M}, {"gid", 0, V}, {"gpu-bind", 0, V}, {"gpu-freq", 0, V},
    {"gpus", 'G', V}, {"gpus-per-node", 0, V}, {"gpus-per-socket", 0, V}, {"gpus-per-task", 0, V}, {"gres", 0, V},
    {"gres-flags", 0, V}, {"help", 'h', N}, {"hint", 0, V}, {"hold", 'H', N}, {"ignore-pbs", 0, N}, {"input", 'i', V},
    {"job-name", 'J', V}, {"kill-on-invalid-dep", 0, V}, {"licenses", 'L', V}, {"mail-type", 0, V},
    {"mail-user", 0, V}, {"mcs-label", 0, V}, {"mem", 0, V}, {"mem-bind", 0, V}, {"mem-per-cpu", 0, V},
    {"mem-per-gpu", 0, V}, {"mem-update", 0, V}, {"mincpus", 0, V}, {"network", 0, V}, {"nice", 0, M}, {"no-kill", 'k', M},
    {"no-requeue", 0, N}, {"nodefile", 'F', V}, {"nodelist", 'w', V}, {"nodes", 'N', V}, {"ntasks", 'n', V},
    {"ntasks-per-core", 0, V}, {"ntasks-per-gpu", 0, V}, {"ntasks-per-node", 0, V}, {"ntasks-per-socket", 0, V}, {"ntasks-per-tres", 0, V},
    {"oom-kill-step", 0, M}, {"open-mode", 0, V}, {"output", 'o', V}, {"overcommit", 'O', N},
    {"oversubscribe", 's', N}, {"parsable", 0, N}, {"partition", 'p', V}, {"power", 0, V}, {"prefer", 0, V}, {"priority", 0, V},
    {"profile", 0, V}, {"propagate", 0, M}, {"qos", 'q', V}, {"quiet", 'Q', N}, {"reboot", 0, N}, {"requeue", 0, N},
    {"reservation", 0, V}, {"resources", 0, V}, {"resv-ports", 0, M}, {"segment", 0, V}, {"signal", 0, V}, {"sockets-per-node", 0, V},
    {"spread-job", 0, N}, {"spread-segments", 0, N}, {"stepmgr", 0, N}, {"switches", 0, V}, {"tasks-per-node", 0, V}, {"test-only", 0, N}, {"thread-spec", 0, V},
    {"threads-per-core", 0, V}, {"time", 't', V}, {"time-min", 0, V}, {"tmp", 0, V}, {"tres-bind", 0, V},
    {"tres-per-task", 0, V}, {"uid", 0, V}, {"usage", 0, N}, {"use-min-nodes", 0, N}, {"verbose", 'v', N},
    {"version", 'V', N}, {"wait", 'W', N}, {"wait-all-nodes", 0, V}, {"wckey", 0, V}, {"wrap", 0, V},
    {"container-image", 0, V}, {"container-mounts", 0, V}, {"container-workdir", 0, V}, {"container-name", 0, V},
    {"container-save", 0, V}, {"container-mount-home", 0, N}, {"no-container-mount-home", 0, N},
    {"container-remap-root", 0, N}, {"no-container-remap-root", 0, N}, {"container-entrypoint", 0, N},
    {"no-container-entrypoint", 0, N}, {"container-entrypoint-log", 0, N}, {"container-writable", 0, N},
    {"container-readonly", 0, N}, {"container-env", 0, V}};
constexpr KnownOption kSrun[] = {
    {"accel-bind", 0, V}, {"async", 0, N}, {"auto-resume", 0, V}, {"bcast", 0, M}, {"bcast-exclude", 0, V}, {"compress", 0, M},
    {"cpu-bind", 0, V}, {"cpu_bind", 0, V}, {"debugger-test", 0, N}, {"disable-status", 'X', N}, {"epilog", 0, V}, {"exact", 0, N}, {"external-launcher", 0, M},
    {"het-group", 0, V}, {"ignore-signals", 0, V}, {"immediate", 'I', M}, {"interactive", 0, N}, {"jobid", 0, V}, {"kill-on-bad-exit", 'K', M}, {"label", 'l', N},
    {"mpi", 0, V}, {"msg-timeout", 0, V}, {"multi-prog", 0, N}, {"no-allocate", 'Z', N}, {"overlap", 0, N}, {"pack-group", 0, V},
    {"preserve-env", 'E', N}, {"prolog", 0, V}, {"pty", 0, M}, {"quit-on-interrupt", 0, N}, {"relative", 'r', V},
    {"send-libs", 0, M}, {"slurmd-debug", 0, V}, {"task-epilog", 0, V}, {"task-prolog", 0, V}, {"threads", 'T', V},
    {"treewidth", 0, V}, {"unbuffered", 'u', N}, {"wait-for-children", 0, N}, {"whole", 0, N}, {"x11", 0, M}};
// clang-format on

const KnownOption* by_letter(std::span<const KnownOption> table, char letter) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const KnownOption& each) { return each.letter == letter; });
  return found == table.end() ? nullptr : &*found;
}

// By its whole name, or by a unique prefix.
const KnownOption* by_name(std::span<const KnownOption> table, std::string_view name) {
  const KnownOption* shortened = nullptr;
  int matches = 0;
  for (const KnownOption& each : table) {
    if (each.name == name) return &each;
    if (each.name.starts_with(name)) {
      shortened = &each;
      ++matches;
    }
  }
  return matches == 1 ? shortened : nullptr;
}

// Old spellings that Slurm still takes.
std::string_view present_name(std::string_view name) {
  if (name == "tasks-per-node") return "ntasks-per-node";
  if (name == "cpu_bind") return "cpu-bind";
  if (name == "pack-group") return "het-group";
  return name;
}

// srun's --wait takes seconds; all other shared options are alike.
const KnownOption* find_known(std::string_view name, char letter, bool step) {
  static constexpr KnownOption kStepWait{"wait", 'W', V};
  if (step && (name == "wait" || letter == 'W')) return &kStepWait;
  const auto look = [&](std::span<const KnownOption> table) {
    return letter != 0 ? by_letter(table, letter) : by_name(table, name);
  };
  const KnownOption* known = look(kSbatch);
  return known == nullptr && step ? look(kSrun) : known;
}

struct Argument {
  std::string text;
  Place place;
  bool operator==(std::string_view other) const { return text == other; }
};

class OptionReader {
 public:
  OptionReader(std::span<const Argument> arguments, bool step) : arguments_(arguments), step_(step) {}

  // Parses up to the first word that is no option, and returns its index.
  size_t read(Options& options, std::vector<shell::Problem>& problems) {
    while (at_ < arguments_.size()) {
      const std::string& text = arguments_[at_].text;
      if (text == "--") return at_ + 1;
      if (text.size() < 2 || text[0] != '-') return at_;
      if (text[1] == '-') {
        read_long(options, problems);
      } else {
        read_short(options, problems);
      }
    }
    return at_;
  }

 private:
  void read_long(Options& options, std::vector<shell::Problem>& problems) {
    const Argument& argument = arguments_[at_++];
    const size_t equals = argument.text.find('=');
    const std::string name = argument.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    const KnownOption* known = find_known(name, 0, step_);
    Option option{std::string(known != nullptr ? present_name(known->name) : name), "", false, argument.place,
                  known != nullptr};
    if (equals != std::string::npos) {
      option.value = argument.text.substr(equals + 1);
      option.has_value = true;
    } else if (known != nullptr && known->takes == V) {
      take_value(option, problems);
    }
    options.add(std::move(option));
  }

  void read_short(Options& options, std::vector<shell::Problem>& problems) {
    const Argument& argument = arguments_[at_++];
    for (size_t i = 1; i < argument.text.size(); ++i) {
      const KnownOption* known = find_known("", argument.text[i], step_);
      const std::string letter(1, argument.text[i]);
      Option option{known != nullptr ? std::string(known->name) : letter, "", false, argument.place, known != nullptr};
      const bool takes = known != nullptr && known->takes != N;
      if (takes && i + 1 < argument.text.size()) {
        option.value = argument.text.substr(i + 1);
        option.has_value = true;
      } else if (takes && known->takes == V) {
        take_value(option, problems);
      }
      options.add(std::move(option));
      if (takes) return;
    }
  }

  void take_value(Option& option, std::vector<shell::Problem>& problems) {
    if (at_ >= arguments_.size()) {
      problems.push_back({option.place, fmt::format("--{} has no value", option.name)});
      return;
    }
    option.value = arguments_[at_++].text;
    option.has_value = true;
  }

  std::span<const Argument> arguments_;
  bool step_;
  size_t at_ = 0;
};

int64_t column_of(std::string_view line, size_t offset) {
  return 1 + std::count_if(line.begin(), line.begin() + static_cast<ptrdiff_t>(offset),
                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// The next argument of a #SBATCH line; false at its end or at an unescaped '#', wherever that stands.
bool next_argument(const std::string& line, int64_t number, size_t& at, Argument& argument) {
  while (at < line.size() && is_space(line[at])) ++at;
  if (at >= line.size() || line[at] == '#') return false;
  argument = {"", {number, column_of(line, at)}};
  char quote = 0;
  for (; at < line.size() && (quote != 0 || !is_space(line[at])); ++at) {
    const char c = line[at];
    if (c == '\\' && at + 1 < line.size()) {
      argument.text += line[++at];
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote == 0 && c == '#') {
      at = line.size();
      break;
    } else {
      argument.text += c;
    }
  }
  return true;
}

void read_sbatch_line(const std::string& line, int64_t number, SbatchLines& out) {
  constexpr size_t kMagic = 7;
  std::vector<Argument> arguments;
  Argument argument;
  for (size_t at = kMagic; next_argument(line, number, at, argument);) arguments.push_back(argument);
  if (!out.any()) out.first = {number, 1};
  std::span<const Argument> rest = arguments;
  while (!rest.empty()) {
    const size_t used = OptionReader(rest, false).read(out.options, out.rejected);
    rest = rest.subspan(used);
    if (rest.empty()) return;
    out.rejected.push_back({rest[0].place, fmt::format("sbatch refuses '{}', which is no option", rest[0].text)});
    rest = rest.subspan(1);
  }
}

}  // namespace

const Option* Options::find(std::string_view name) const {
  const auto found = std::find_if(all_.rbegin(), all_.rend(), [&](const Option& each) { return each.name == name; });
  return found == all_.rend() ? nullptr : &*found;
}

std::string_view Options::value(std::string_view name) const {
  const Option* option = find(name);
  return option == nullptr ? std::string_view() : std::string_view(option->value);
}

std::optional<int64_t> Options::number(std::string_view name) const {
  return parse_whole(value(name));
}

std::string_view nearest_sbatch_option(std::string_view name) {
  constexpr size_t kNear = 2;
  std::string_view nearest;
  size_t fewest = kNear + 1;
  for (const KnownOption& each : kSbatch) {
    const size_t steps = edit_distance(each.name, name);
    if (steps < fewest) {
      fewest = steps;
      nearest = each.name;
    }
  }
  return nearest;
}

bool is_step_option(std::string_view name) {
  return by_name(kSbatch, name) == nullptr && by_name(kSrun, name) != nullptr;
}

SbatchLines read_sbatch_lines(std::span<const std::string> lines) {
  constexpr std::string_view kMagic = "#SBATCH";
  SbatchLines out;
  bool commands = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const auto number = static_cast<int64_t>(i) + 1;
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const bool magic = std::string_view(line).substr(begin).starts_with(kMagic);
    const Place place{number, column_of(line, begin)};
    if (magic && commands) {
      out.unread.push_back(
          {place, "sbatch stopped reading options at the first command above, so this line does nothing"});
    } else if (magic && begin > 0) {
      out.unread.push_back({place, "sbatch takes #SBATCH only at the very start of a line, so this one does nothing"});
    } else if (magic) {
      read_sbatch_line(line, number, out);
    } else if (line[begin] != '#') {
      commands = true;
    }
  }
  return out;
}

CommandLine read_command_line(std::span<const shell::Word> words) {
  std::vector<Argument> arguments;
  for (const shell::Word& word : words.subspan(std::min<size_t>(1, words.size())))
    arguments.push_back({word.text(), word.place});
  CommandLine out;
  std::vector<shell::Problem> problems;
  out.command = 1 + OptionReader(arguments, true).read(out.options, problems);
  out.command = std::min(out.command, words.size());
  return out;
}

Gres parse_gpus(std::string_view text) {
  const auto found = parse_gres("gpu:" + std::string(text.substr(0, text.find(','))));
  return found.empty() ? Gres{"gpu", "", 1} : found.front();
}

}  // namespace millrace::slurm
