// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"

namespace millrace::jobs {

namespace {

using shell::Part;
using shell::Scope;
using shell::Statement;
using shell::Word;

constexpr int kDeepestValue = 8;

bool is_shell_name(std::string_view program) {
  return is_one_of(program, {"bash", "sh"});
}

// "-c", "-lc", "-ec"
bool is_command_flag(std::string_view word) {
  return word.size() >= 2 && word[0] == '-' && word[1] != '-' && word.back() == 'c';
}

// A program that starts another one: its options whose value is a word of its own, and the words that follow them.
struct Wrapper {
  std::string_view name;
  std::array<std::string_view, 6> valued = {};
  size_t operands = 0;
};
constexpr Wrapper kWrappers[] = {{"env", {"-u", "--unset", "-C", "--chdir"}},
                                 {"exec", {"-a"}},
                                 {"time", {"-f", "--format", "-o", "--output"}},
                                 {"nohup"},
                                 {"setsid"},
                                 {"command"},
                                 {"numactl", {"-C", "-N", "-m", "-i", "-p", "-l"}},
                                 {"stdbuf", {"-i", "-o", "-e"}},
                                 {"nice", {"-n"}},
                                 {"ionice", {"-c", "-n"}},
                                 {"taskset", {}, 1},
                                 {"timeout", {"-k", "--kill-after", "-s", "--signal"}, 1}};

bool names_torchrun(const std::vector<Word>& words) {
  return std::any_of(words.begin(), words.end(), [](const Word& word) {
    const std::string text = word.text();
    return base_name(text) == "torchrun" || text == "torch.distributed.run" || text == "torch.distributed.launch";
  });
}

Launch::Kind kind_of(const std::vector<Word>& words, std::string_view program) {
  if (names_torchrun(words)) return Launch::Kind::kTorchrun;
  if (program.starts_with("python")) return Launch::Kind::kPython;
  if (program == "millrace") return Launch::Kind::kMillrace;
  if (is_shell_name(program)) return Launch::Kind::kShell;
  return Launch::Kind::kOther;
}

bool looks_like_training(const std::vector<Word>& words, Launch::Kind kind) {
  if (kind == Launch::Kind::kTorchrun) return true;
  if (kind != Launch::Kind::kPython && kind != Launch::Kind::kShell) return false;
  return std::any_of(words.begin(), words.end(), [](const Word& word) {
    const std::string lower = lower_case(word.source);
    return contains(lower, "train") || contains(lower, "finetune") || contains(lower, "checkpoint") ||
           contains(lower, "--epochs");
  });
}

// "#!/usr/bin/env -S python3 -u" -> "python3"; "" without a #!.
std::string interpreter_of(std::string_view text) {
  if (!text.starts_with("#!")) return {};
  const shell::Script line = shell::parse(text.substr(2, text.find_first_of("#\r\n", 2) - 2));
  if (line.statements.empty()) return {};
  for (const Word& word : line.statements[0].words) {
    const std::string_view name = base_name(word.source);
    if (name != "env" && !name.starts_with('-') && !contains(name, "=")) return std::string(name);
  }
  return {};
}

// "-x", "-gx" of declare.
bool exports_by_flag(const Statement& statement) {
  return std::any_of(statement.words.begin(), statement.words.end(), [](const Word& word) {
    return word.source.size() > 1 && word.source[0] == '-' && contains(word.source, "x");
  });
}

void add_arithmetic_names(std::string_view text, std::set<std::string>& names) {
  std::string current;
  for (const char c : std::string(text) + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      current += c;
    } else {
      if (shell::is_name(current)) names.insert(current);
      current.clear();
    }
  }
}

}  // namespace

size_t skip_wrappers(const std::vector<Word>& words, size_t at) {
  while (at < words.size()) {
    const auto* const wrapper = std::find_if(std::begin(kWrappers), std::end(kWrappers), [&](const Wrapper& each) {
      return each.name == base_name(words[at].source);
    });
    if (wrapper == std::end(kWrappers)) return at;
    size_t operands = wrapper->operands;
    for (++at; at < words.size(); ++at) {
      const std::string text = words[at].text();
      const bool valued = std::find(wrapper->valued.begin(), wrapper->valued.end(), text) != wrapper->valued.end();
      if (valued && !text.empty()) {
        ++at;
      } else if (!text.starts_with('-') && !contains(text, "=")) {
        if (operands == 0) break;
        --operands;
      }
    }
  }
  return std::min(at, words.size());
}

Job::Job(std::string file, std::string_view text) : file_(std::move(file)), text_(text) {
  const std::string interpreter = interpreter_of(text_);
  is_shell_ = interpreter.empty() || is_one_of(interpreter, {"bash", "sh", "dash", "ksh", "zsh"});
  script_ = shell::parse(is_shell_ ? std::string_view(text_) : std::string_view());
  if (!is_shell_) script_.lines = shell::split_lines(text_);
  sbatch_ = slurm::read_sbatch_lines(script_.lines);
  collect(script_.statements, false);
  move_exported_functions();
  read_resources();
}

void Job::collect(const shell::Block& block, bool in_step) {
  shell::visit(block, [&](const Statement& statement, const Scope& scope) {
    commands_.push_back({&statement, scope, in_step});
    const std::string name = statement.name();
    const bool declares = is_one_of(name, {"export", "declare", "local", "readonly", "typeset"});
    const bool prefix = !statement.words.empty() && !declares;
    const bool exported = prefix || name == "export" || (declares && exports_by_flag(statement));
    for (const shell::Assignment& assignment : statement.assignments) {
      definitions_.push_back({&assignment, &statement, exported, in_step, prefix});
      if (exported && !prefix) exported_names_.insert(assignment.name);
    }
    collect_names(statement);
    collect_exports(statement);
    collect_expansions(statement);
    collect_launch(statement, scope, in_step);
  });
}

// `export -f work; srun bash -c work`: its body runs in the tasks.
void Job::move_exported_functions() {
  std::set<std::string> exported;
  for (const Command& command : commands_) {
    const auto& words = command.statement->words;
    if (command.statement->name() != "export" || words.size() < 3 || words[1].text() != "-f") continue;
    for (size_t i = 2; i < words.size(); ++i) exported.insert(words[i].text());
  }
  std::set<const Statement*> moved;
  for (Command& command : commands_) {
    if (command.scope.function == nullptr || exported.count(command.scope.function->name()) == 0) continue;
    command.in_step = true;
    moved.insert(command.statement);
  }
  for (Definition& each : definitions_) each.in_step = each.in_step || moved.count(each.statement) > 0;
}

void Job::collect_names(const Statement& statement) {
  using Kind = Statement::Kind;
  const std::string name = statement.name();
  if (statement.kind == Kind::kFunction) functions_[name] = &statement;
  if (statement.kind == Kind::kFor && !statement.words.empty()) other_names_.insert(statement.words[0].text());
  if (is_one_of(name, {"source", ".", "eval"})) not_followed_.push_back(&statement);
  if (is_one_of(name, {"read", "mapfile", "readarray", "getopts", "printf", "declare", "local", "export", "let",
                       "readonly"})) {
    for (const Word& word : statement.words) {
      if (shell::is_name(word.text())) other_names_.insert(word.text());
    }
  }
  const bool counts = statement.kind == Kind::kFor && !statement.words.empty() &&
                      statement.words[0].source.starts_with("((");  // for ((i = 0; ...))
  if (statement.kind == Kind::kArithmetic || counts) add_arithmetic_names(statement.words[0].source, other_names_);
  for (size_t i = 1; name == "let" && i < statement.words.size(); ++i)
    add_arithmetic_names(statement.words[i].source, other_names_);
}

void Job::collect_exports(const Statement& statement) {
  const std::string name = statement.name();
  if (name == "export" || ((name == "declare" || name == "typeset") && exports_by_flag(statement))) {
    for (const Word& word : statement.words) {
      if (shell::is_name(word.text())) exported_names_.insert(word.text());
    }
  }
  if (name != "set") return;
  for (const Word& word : statement.words) {
    const std::string text = word.text();
    const bool flag = text.size() > 1 && text[0] == '-' && text[1] != '-' && contains(text, "a");
    exports_all_ = exports_all_ || flag || text == "allexport";
  }
}

void Job::collect_expansions(const Statement& statement) {
  const std::string name = statement.name();
  const bool tests = name == "[" || name == "test" || statement.kind == Statement::Kind::kTest;
  const bool for_emptiness =
      tests && std::any_of(statement.words.begin(), statement.words.end(), [](const Word& word) {
        return is_one_of(word.source, {"-z", "-n", "-v"}) || word.source == "\"\"" || word.source == "''";
      });
  const auto add_part = [&](const Part& part) {
    if (part.kind == Part::Kind::kArithmetic) add_arithmetic_names(part.text, expanded_names_);
    if (part.kind != Part::Kind::kVariable || !shell::is_name(part.text)) return;
    const std::string_view operation = part.operation;
    const char first = operation.empty() ? ' ' : operation[operation[0] == ':' && operation.size() > 1 ? 1 : 0];
    if (first == '=') other_names_.insert(part.text);
    if (for_emptiness || (first != ' ' && contains("-?+=", std::string_view(&first, 1))))
      guarded_names_.insert(part.text);
    expanded_names_.insert(part.text);
  };
  shell::visit_words(statement, [&](const Word& word) {
    for (const Part& part : word.parts) add_part(part);
  });
}

void Job::collect_launch(const Statement& statement, const Scope& scope, bool in_step) {
  if (statement.kind != Statement::Kind::kCommand || statement.words.empty() || in_step) return;
  const size_t first = skip_wrappers(statement.words, 0);
  if (first >= statement.words.size()) return;
  const std::string_view name = base_name(statement.words[first].source);
  const bool srun = name == "srun";
  const bool direct =
      is_one_of(name, {"mpirun", "mpiexec", "deepspeed", "accelerate", "torchrun"}) || name.starts_with("python");
  if (!srun && !direct) return;
  Launch launch{.statement = &statement, .scope = scope, .srun = srun, .options = {}, .command = {}, .program = {}};
  const std::span<const Word> words = std::span(statement.words).subspan(first);
  runs_itself_ = runs_itself_ || (srun && std::any_of(words.begin(), words.end(), [](const Word& word) {
                                    return contains(word.source, "$0") || contains(word.source, "BASH_SOURCE");
                                  }));
  size_t at = first;
  if (srun) {
    CommandLine line = slurm::read_command_line(words);
    launch.options = std::move(line.options);
    at = skip_wrappers(statement.words, first + line.command);
  }
  launch.command.assign(statement.words.begin() + static_cast<ptrdiff_t>(at), statement.words.end());
  if (!launch.command.empty()) launch.program = base_name(launch.command[0].source);
  launch.kind = kind_of(launch.command, launch.program);
  launch.training = looks_like_training(launch.command, launch.kind);
  if (srun && is_shell_name(launch.program) && launch.command.size() > 2 && is_command_flag(launch.command[1].text())) {
    const Word& inner = launch.command[2];
    const bool quoted = inner.source.size() > 1 && (inner.source[0] == '\'' || inner.source[0] == '"');
    const std::string text = quoted ? inner.source.substr(1, inner.source.size() - 2) : inner.source;
    nested_.push_back(shell::parse(text, {inner.place.line, inner.place.column + (quoted ? 1 : 0)}));
    shell::visit(nested_.back().statements, [&](const Statement& each, const Scope&) {
      if (each.words.empty()) return;
      const size_t begin = skip_wrappers(each.words, 0);
      if (begin >= each.words.size()) return;
      const std::vector<Word> rest(each.words.begin() + static_cast<ptrdiff_t>(begin), each.words.end());
      const std::string_view program = base_name(rest[0].source);
      const Launch::Kind kind = kind_of(rest, program);
      if (kind != Launch::Kind::kPython && kind != Launch::Kind::kTorchrun && kind != Launch::Kind::kMillrace) return;
      launch.command = rest;
      launch.program = program;
      launch.kind = kind;
      launch.training = looks_like_training(rest, kind);
    });
    const bool runs_the_rest =
        contains(text, "\"$@\"") && launch.command.size() > 4 && launch.command[0].place == statement.words[at].place;
    if (runs_the_rest) {  // bash -c 'exec "$@"' name command...
      launch.command.erase(launch.command.begin(), launch.command.begin() + 4);
      launch.program = base_name(launch.command[0].source);
      launch.kind = kind_of(launch.command, launch.program);
      launch.training = looks_like_training(launch.command, launch.kind);
    }
    launches_.push_back(std::move(launch));
    return collect(nested_.back().statements, true);
  }
  launches_.push_back(std::move(launch));
}

const Definition* Job::definition(std::string_view name) const {
  const Definition* found = nullptr;
  for (const Definition& each : definitions_) {
    if (each.assignment->name != name || each.prefix) continue;
    if (found != nullptr) return nullptr;
    found = &each;
  }
  return found;
}

std::optional<std::string> Job::value(const Word& word, int depth) const {
  if (depth > kDeepestValue) return std::nullopt;
  std::string out;
  for (const Part& part : word.parts) {
    if (part.kind == Part::Kind::kText) {
      out += part.text;
      continue;
    }
    if (part.kind != Part::Kind::kVariable || !part.operation.empty()) return std::nullopt;
    const Definition* known = definition(part.text);
    const bool plain = known != nullptr && !known->assignment->is_array && !known->assignment->append;
    if (!plain || other_names_.count(part.text) > 0) return std::nullopt;
    const auto inner = value(known->assignment->value, depth + 1);
    if (!inner) return std::nullopt;
    out += *inner;
  }
  return out;
}

std::string Job::known_prefix(const Word& word) const {
  std::string out;
  for (const Part& part : word.parts) {
    Word one{"", part.place, {part}};
    const auto known = value(one);
    if (!known) break;
    out += *known;
  }
  return out;
}

void Job::read_resources() {
  const Options& asked = options();
  const std::string_view nodes = asked.value("nodes");
  nodes_ = parse_whole(nodes.substr(0, nodes.find_first_of("-,"))).value_or(0);
  tasks_per_node_ = asked.number("ntasks-per-node").value_or(0);
  const int64_t tasks = asked.number("ntasks").value_or(0);
  if (tasks_per_node_ == 0 && tasks > 0 && nodes_ > 0) tasks_per_node_ = (tasks + nodes_ - 1) / nodes_;
  if (tasks_per_node_ == 0 && tasks > 0 && nodes_ == 0) tasks_per_node_ = tasks;
  for (const slurm::Gres& gres : slurm::parse_gres(asked.value("gres"))) {
    if (gres.name != "gpu") continue;
    gpus_per_node_ = gres.count;
    gpu_type_ = gres.type;
    gpu_option_ = asked.find("gres");
  }
  const auto take = [&](std::string_view name, auto per_node) {
    const Option* option = asked.find(name);
    if (option == nullptr) return;
    const slurm::Gres gpus = slurm::parse_gpus(option->value);
    gpus_per_node_ = per_node(gpus.count);
    gpu_type_ = gpus.type;
    gpu_option_ = option;
  };
  take("gpus", [&](int64_t count) { return nodes_ > 0 ? count / nodes_ : count; });
  take("gpus-per-task", [&](int64_t count) { return count * std::max<int64_t>(1, tasks_per_node_); });
  take("gpus-per-node", [](int64_t count) { return count; });
}

}  // namespace millrace::jobs
