// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/scripts.h"

#include <algorithm>
#include <cctype>

namespace millrace::pcluster {
namespace {

bool is_path_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

// Where a path may begin in a word, but for its start: "--out=/fsx1", "/a:/fsx1" of a list, and not "s3://b/fsx1".
void add_folders(std::string_view text, bool starts_word, const shell::Place& place, std::vector<NamedFolder>& found) {
  constexpr std::string_view kBefore = "=:, \t\"'(";
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = text[i] == '/' && (i == 0 ? starts_word : kBefore.find(text[i - 1]) != std::string_view::npos);
    if (!begins || text.substr(i).starts_with("//")) continue;
    size_t end = i + 1;
    while (end < text.size() && is_path_letter(text[end])) ++end;
    if (end > i + 1) {
      found.push_back({std::string(text.substr(i, end - i)), {place.line, place.column + static_cast<int64_t>(i)}});
    }
    i = end - 1;
  }
}

void add_word(const shell::Word& word, std::vector<NamedFolder>& found) {
  for (size_t i = 0; i < word.parts.size(); ++i) {
    const shell::Part& part = word.parts[i];
    if (part.kind == shell::Part::Kind::kText) add_folders(part.text, i == 0, part.place, found);
  }
}

bool is_slurm_command(std::string_view name) {
  return name == "srun" || name == "sbatch" || name == "salloc";
}

}  // namespace

ScriptNeeds read_needs(const Script& script) {
  const shell::Script parsed = shell::parse(script.text);
  ScriptNeeds needs{.file = script.file};
  const slurm::SbatchLines sbatch = slurm::read_sbatch_lines(parsed.lines);
  needs.options = sbatch.options.all();
  for (const slurm::Option& option : needs.options) add_folders(option.value, true, option.place, needs.folders);
  shell::visit(parsed.statements, [&](const shell::Statement& statement, const shell::Scope&) {
    if (is_slurm_command(statement.name())) {
      const slurm::CommandLine line = slurm::read_command_line(statement.words);
      needs.options.insert(needs.options.end(), line.options.all().begin(), line.options.all().end());
    }
    shell::visit_words(statement, [&](const shell::Word& word) { add_word(word, needs.folders); });
  });
  for (const shell::HereDocument& document : parsed.here_documents) {
    shell::Place place = document.place;
    for (const std::string& line : shell::split_lines(document.body)) {
      add_folders(line, true, place, needs.folders);
      ++place.line;
    }
  }
  return needs;
}

}  // namespace millrace::pcluster
