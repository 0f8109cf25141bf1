// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of sbatch and srun, and their parsing from `#SBATCH` lines and command lines, as Slurm parses them.
// Values and pure functions; thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/shell/shell.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

using shell::Place;

struct Option {
  std::string name;  // long, without dashes: "ntasks-per-node" for -ntasks, also where it was shortened
  std::string value;
  bool has_value = false;
  Place place;  // of the option
  bool known = true;
};

class Options {
 public:
  // The last one wins, as in Slurm. nullptr when it is not there.
  const Option* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // "" when it is not there.
  std::string_view value(std::string_view name) const;
  // Its value as a whole number.
  std::optional<int64_t> number(std::string_view name) const;
  const std::vector<Option>& all() const { return all_; }
  void add(Option option) { all_.push_back(std::move(option)); }

 private:
  std::vector<Option> all_;
};

struct SbatchLines {
  Options options;
  std::vector<shell::Problem> unread;    // lines that look like options and that sbatch ignores
  std::vector<shell::Problem> rejected;  // reasons for sbatch to refuse the script, except unknown options
  Place first;                           // of the first #SBATCH that counts; {} when there is none
  bool any() const { return first.line > 0; }
};

// `#SBATCH` at the very start of a line, before the first line that is neither blank nor a comment; blanks, quotes,
// backslashes and # in it as sbatch takes them.
SbatchLines read_sbatch_lines(std::span<const std::string> lines);

// The option of sbatch that differs from `name` in two letters at most; "" when there is none.
std::string_view nearest_sbatch_option(std::string_view name);

// An option of srun that sbatch does not have.
bool is_step_option(std::string_view name);

// The options of `srun ...` or `sbatch ...`, and where in `words` (whose first is the program) its command begins.
struct CommandLine {
  Options options;
  size_t command = 0;  // words.size() when there is none
};
CommandLine read_command_line(std::span<const shell::Word> words);

// --- values ---------------------------------------------------------------------------------------------------------

// "8" and "h200:8" of the --gpus options, whose `name` is "gpu".
Gres parse_gpus(std::string_view text);

}  // namespace millrace::slurm
