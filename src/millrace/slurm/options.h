// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of sbatch and srun. Parses them from `#SBATCH` lines and command lines as Slurm does. Values and pure
// functions; thread-safe.

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
  std::string name;  // long, without dashes: "ntasks-per-node" for -ntasks, even if it was shortened
  std::string value;
  bool has_value = false;
  Place place;  // of the option
  bool known = true;
};

class Options {
 public:
  // Returns the option; the last one wins, as in Slurm. nullptr if it is absent.
  const Option* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Returns "" if the option is absent.
  std::string_view value(std::string_view name) const;
  // Returns the value as a whole number; nullopt if it is none.
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
  Place first;                           // the first #SBATCH line that counts; {}: none
  bool any() const { return first.line > 0; }
};

// Reads lines with `#SBATCH` at the very start, before the first line that is neither blank nor a comment. Treats
// blanks, quotes, backslashes and # in them as sbatch does.
SbatchLines read_sbatch_lines(std::span<const std::string> lines);

// Returns the sbatch option that differs from `name` in at most two letters; "" if there is none.
std::string_view nearest_sbatch_option(std::string_view name);

// Returns whether `name` is an option of srun that sbatch does not have.
bool is_step_option(std::string_view name);

// The options of `srun ...` or `sbatch ...`, and the index in `words` at which its command begins. The first word is
// the program itself.
struct CommandLine {
  Options options;
  size_t command = 0;  // words.size(): no command
};
CommandLine read_command_line(std::span<const shell::Word> words);

// --- values ---------------------------------------------------------------------------------------------------------

// Parses "8" and "h200:8" of the --gpus options; the result's `name` is "gpu".
Gres parse_gpus(std::string_view text);

}  // namespace millrace::slurm
