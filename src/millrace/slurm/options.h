// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of sbatch and srun: which there are, and what `#SBATCH` lines and command lines say with them, read as
// Slurm itself reads them. Values and pure functions; thread-safe.

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
  std::vector<shell::Problem> unread;    // lines and words that look like options and that sbatch passes over
  std::vector<shell::Problem> rejected;  // what makes sbatch refuse the script, options it does not know aside
  Place first;                           // of the first #SBATCH that counts; {} when there is none
  bool any() const { return first.line > 0; }
};

// `#SBATCH` at the very start of a line, before the first line that is neither blank nor a comment; blanks, quotes,
// backslashes and # in it as sbatch takes them.
SbatchLines read_sbatch_lines(std::span<const std::string> lines);

// The option of sbatch that differs from `name` in two letters at most; "" when there is none.
std::string_view nearest_sbatch_option(std::string_view name);

// The options of `srun ...` or `sbatch ...`, and where in `words` (whose first is the program) its command begins.
struct CommandLine {
  Options options;
  size_t command = 0;  // words.size() when there is none
};
CommandLine read_command_line(std::span<const shell::Word> words);

// --- values ---------------------------------------------------------------------------------------------------------

// Digits only.
std::optional<int64_t> parse_whole(std::string_view text);
// A time limit in seconds: "30", "30:00", "1:30:00", "2-12", "2-12:30", "2-12:30:00". Nothing for "UNLIMITED" and what
// is no time at all, which `is_unlimited` tells apart.
std::optional<int64_t> parse_time_limit(std::string_view text);
bool is_unlimited(std::string_view text);

// "8" and "h200:8" of the --gpus options, whose `name` is "gpu".
Gres parse_gpus(std::string_view text);

}  // namespace millrace::slurm
