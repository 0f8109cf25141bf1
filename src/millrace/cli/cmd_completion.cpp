// SPDX-License-Identifier: Apache-2.0
// Completion scripts for shells, generated from the tree of verbs and flags, so the two always agree.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

struct FlagWord {
  std::string name;  // "--documents"
  std::string description;
  bool takes_value = false;
  std::vector<std::string> choices;  // of the value; empty: files
};

struct VerbWords {
  std::string path;                                        // "millrace shards check"
  std::vector<std::pair<std::string, std::string>> below;  // name and description of the verbs it groups
  std::vector<FlagWord> flags;
};

FlagWord flag_word(const CLI::Option& option) {
  FlagWord word{option.get_name(false, false), option.get_description(), option.get_expected_max() > 0, {}};
  if (!option.get_lnames().empty()) word.name = "--" + option.get_lnames().front();
  const std::string& text = option.get_option_text();
  if (text.find('|') != std::string::npos) word.choices = CLI::detail::split(text, '|');
  return word;
}

void collect_words(const CLI::App& app, const std::string& above, std::vector<VerbWords>& all) {
  VerbWords words{above + app.get_name(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) words.flags.push_back(flag_word(*option));
  }
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* verb : below) words.below.emplace_back(verb->get_name(), verb->get_description());
  const std::string prefix = words.path + " ";
  all.push_back(std::move(words));
  for (const CLI::App* verb : below) collect_words(*verb, prefix, all);
}

// In single quotes, for any of the shells.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string bash_script(const std::vector<VerbWords>& verbs) {
  std::vector<std::string> paths;
  std::string values;
  std::string words;
  for (const VerbWords& verb : verbs) {
    paths.push_back('"' + verb.path + '"');
    std::vector<std::string> here;
    for (const auto& below : verb.below) here.push_back(below.first);
    for (const FlagWord& flag : verb.flags) {
      here.push_back(flag.name);
      if (!flag.takes_value) continue;
      values +=
          fmt::format("    \"{} {}\") {} return;;\n", verb.path, flag.name,
                      flag.choices.empty() ? "" : fmt::format("words=\"{}\"; match;", fmt::join(flag.choices, " ")));
    }
    words += fmt::format("    \"{}\") words=\"{}\";;\n", verb.path, fmt::join(here, " "));
  }
  return fmt::format(R"(# bash completion of millrace: source <(millrace completion bash)
_millrace() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} verb=millrace word words=""
  match() {{ local IFS=$' \t\n'; COMPREPLY=($(compgen -W "$words" -- "$cur")); }}
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$verb $word" in
      {}) verb="$verb $word";;
    esac
  done
  case "$verb $prev" in
{}  esac
  case "$verb" in
{}  esac
  match
}}
complete -o default -F _millrace millrace
)",
                     fmt::join(paths, "|"), values, words);
}

std::string zsh_function(const std::string& path) {
  std::string name = "_" + path;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

// `[`, `]`, `:` and `\` have a meaning in the specifications of _arguments and _describe.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_script(const std::vector<VerbWords>& verbs) {
  std::string script = "#compdef millrace\n# zsh completion of millrace: source <(millrace completion zsh)\n";
  for (const VerbWords& verb : verbs) {
    std::string arguments;
    for (const FlagWord& flag : verb.flags) {
      std::string specification = flag.name + "[" + zsh_text(flag.description) + "]";
      if (flag.takes_value) specification += ":value:";
      if (flag.takes_value)
        specification += flag.choices.empty() ? "_files" : fmt::format("({})", fmt::join(flag.choices, " "));
      arguments += " \\\n    " + shell_quoted(specification);
    }
    script += zsh_function(verb.path) + "() {\n";
    if (verb.below.empty()) {
      script += "  _arguments" + arguments + " \\\n    '*:file:_files'\n}\n";
      continue;
    }
    std::string names;
    std::string cases;
    for (const auto& [name, description] : verb.below) {
      names += "\n    " + shell_quoted(name + ":" + zsh_text(description));
      cases += fmt::format("    {}) {};;\n", name, zsh_function(verb.path + " " + name));
    }
    script += fmt::format(
        "  local line state\n  local -a verbs=({}\n  )\n  _arguments -C{} \\\n    '1: :->verb' '*:: :->rest'\n"
        "  [[ $state == verb ]] && _describe verb verbs\n  [[ $state == rest ]] && case $line[1] in\n{}  esac\n}}\n",
        names, arguments, cases);
  }
  // zsh autoloads the file as the function itself; a sourced file registers the function.
  return script + "if [[ $funcstack[1] == _millrace ]]; then _millrace \"$@\"; else compdef _millrace millrace; fi\n";
}

// True when the verbs above are on the line and no verb of the same level is.
std::string fish_condition(const VerbWords& verb) {
  std::string condition;
  for (const std::string& name : CLI::detail::split(verb.path, ' ')) {
    if (name == "millrace") continue;
    condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + name);
  }
  if (!verb.below.empty()) {
    condition += (condition.empty() ? "" : "; and ") + std::string("not __fish_seen_subcommand_from");
    for (const auto& below : verb.below) condition += " " + below.first;
  }
  return condition;
}

std::string fish_script(const std::vector<VerbWords>& verbs) {
  std::string script = "# fish completion of millrace: millrace completion fish | source\n";
  for (const VerbWords& verb : verbs) {
    const std::string start = "complete -c millrace -n " + shell_quoted(fish_condition(verb));
    for (const auto& [name, description] : verb.below) {
      script += fmt::format("{} -f -a {} -d {}\n", start, name, shell_quoted(description));
    }
    for (const FlagWord& flag : verb.flags) {
      script += fmt::format("{} -l {}", start, flag.name.substr(2));
      if (flag.takes_value)
        script +=
            flag.choices.empty() ? " -r -F" : " -x -a " + shell_quoted(fmt::format("{}", fmt::join(flag.choices, " ")));
      script += " -d " + shell_quoted(flag.description) + "\n";
    }
  }
  return script;
}

Status run_completion(const CLI::App& root, const std::string& shell, Context& context) {
  std::vector<VerbWords> verbs;
  collect_words(root, "", verbs);
  const std::string script = shell == "bash"  ? bash_script(verbs)
                             : shell == "zsh" ? zsh_script(verbs)
                                              : fish_script(verbs);
  context.out.print({{"type", "completion"}, {"shell", shell}, {"script", script}}, script);
  return {};
}

}  // namespace

void add_completion(Verbs& verbs) {
  auto shell = std::make_shared<std::string>();
  CLI::App& app =
      verbs.add(verbs.root(), "completion", "Print a completion script for a shell",
                {"millrace completion bash > ~/.local/share/bash-completion/completions/millrace",
                 "millrace completion zsh > ~/.zfunc/_millrace",
                 "millrace completion fish > ~/.config/fish/completions/millrace.fish"},
                [&verbs, shell](Context& context) { return run_completion(verbs.root(), *shell, context); });
  app.add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->option_text(" ");
}

}  // namespace millrace::cli
