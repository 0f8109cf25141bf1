// SPDX-License-Identifier: Apache-2.0
#pragma once

// The facts that the text of a job script shows: its options, its variables, the commands it launches and where. They
// are collected once for all rules. Not copyable: pointers lead into the script it owns. Thread-safe once built.

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/path.h"
#include "millrace/shell/shell.h"
#include "millrace/slurm/options.h"

namespace millrace::jobs {

using shell::Place;
using slurm::CommandLine;
using slurm::Option;
using slurm::Options;
using slurm::SbatchLines;

// A command with its place in the script's structure.
struct Command {
  const shell::Statement* statement;
  shell::Scope scope;
  bool in_step = false;  // runs in the tasks of a step, not in the batch shell
};

// One srun, or a launcher that starts itself on all nodes (mpirun, torchrun without srun).
struct Launch {
  const shell::Statement* statement;
  shell::Scope scope;
  bool srun = false;
  Options options;                   // options of srun
  std::vector<shell::Word> command;  // without launcher options, env and the like; may be empty
  enum class Kind { kOther, kPython, kTorchrun, kMillrace, kShell } kind = Kind::kOther;
  std::string program;    // the base name of the command's first word
  bool training = false;  // recognised by its words: train, finetune, checkpoints
};

struct Definition {
  const shell::Assignment* assignment;
  const shell::Statement* statement;
  bool exported = false;
  bool in_step = false;
  bool prefix = false;  // A=1 before a command: set for this command alone
};

// Skips programs that start another program (env, exec, timeout, numactl...) and their options. Returns the position
// of the other program's name, or words.size().
size_t skip_wrappers(const std::vector<shell::Word>& words, size_t at);

class Job {
 public:
  Job(std::string file, std::string_view text);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  const shell::Script& script() const { return script_; }
  const SbatchLines& sbatch() const { return sbatch_; }
  const Options& options() const { return sbatch_.options; }
  // Whether the script has #SBATCH lines. Its body is then the batch shell, which runs once on the first node.
  bool is_batch() const { return sbatch_.any(); }

  const std::vector<Command>& commands() const { return commands_; }
  const std::vector<Launch>& launches() const { return launches_; }
  const std::vector<Definition>& definitions() const { return definitions_; }
  // Names that get a value without an assignment: loops, read, mapfile, getopts, arithmetic.
  const std::set<std::string>& other_names() const { return other_names_; }
  // Names that the script expects from outside: ${NAME:-x}, ${NAME:?}, [ -z "$NAME" ].
  const std::set<std::string>& guarded_names() const { return guarded_names_; }
  // Whether programs see the name's value: export, declare -x, set -a.
  bool exports(const std::string& name) const { return exports_all_ || exported_names_.count(name) > 0; }
  // Whether the script itself uses the name's value.
  bool expands(const std::string& name) const { return expanded_names_.count(name) > 0; }
  // Whether a step runs this script again ($0), so that its lines run in the tasks too.
  bool runs_itself() const { return runs_itself_; }
  // The names of functions, with the place of each definition.
  const std::map<std::string, const shell::Statement*>& functions() const { return functions_; }
  // Statements that source a file or evaluate text. Names may come from there.
  const std::vector<const shell::Statement*>& not_followed() const { return not_followed_; }

  // Returns a word's value, if the script alone determines all of it; else nullopt.
  std::optional<std::string> value(const shell::Word& word, int depth = 0) const;
  // Returns the known beginning of a word's value: "/fsx2/model" for "/fsx2/model${ID}/x" where ID is unknown.
  std::string known_prefix(const shell::Word& word) const;
  // Returns the definition of a name that is assigned exactly once, else null.
  const Definition* definition(std::string_view name) const;

  // --- requested resources; 0 when not requested
  int64_t nodes() const { return nodes_; }
  int64_t tasks_per_node() const { return tasks_per_node_; }
  int64_t gpus_per_node() const { return gpus_per_node_; }
  std::string_view gpu_type() const { return gpu_type_; }
  bool exclusive() const { return options().has("exclusive"); }
  bool is_array() const { return options().has("array"); }
  // The option that requests GPUs; null when none does.
  const Option* gpu_option() const { return gpu_option_; }

 private:
  void collect(const shell::Block& block, bool in_step);
  void move_exported_functions();
  void collect_names(const shell::Statement& statement);
  void collect_exports(const shell::Statement& statement);
  void collect_expansions(const shell::Statement& statement);
  void collect_launch(const shell::Statement& statement, const shell::Scope& scope, bool in_step);
  void read_resources();

  std::string file_, text_;
  shell::Script script_;
  std::deque<shell::Script> nested_;  // texts of bash -c '...'; a deque, so pointers to them stay valid
  SbatchLines sbatch_;
  bool is_shell_ = true;  // the interpreter is a shell; else only #SBATCH lines are checked
  std::vector<Command> commands_;
  std::vector<Launch> launches_;
  std::vector<Definition> definitions_;
  std::set<std::string> other_names_, guarded_names_, exported_names_, expanded_names_;
  bool exports_all_ = false, runs_itself_ = false;
  std::map<std::string, const shell::Statement*> functions_;
  std::vector<const shell::Statement*> not_followed_;
  int64_t nodes_ = 0, tasks_per_node_ = 0, gpus_per_node_ = 0;
  std::string gpu_type_;
  const Option* gpu_option_ = nullptr;
};

inline bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}
// Whether `needle` occurs in `text`.
inline bool contains(std::string_view text, std::string_view needle) {
  return text.find(needle) != std::string_view::npos;
}

}  // namespace millrace::jobs
