// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/prepare/tokenizer_file.h"
#include "millrace/tokenizer/inspect.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::cli {

namespace {

Json inspection_json(const std::string& url, const tokenizer::Inspection& found) {
  Json object{{"type", "tokenizer"},
              {"url", url},
              {"model", found.model},
              {"vocabulary", found.vocabulary},
              {"merges", found.merges},
              {"added_tokens", found.added_tokens},
              {"special_tokens", found.special_tokens},
              {"id_limit", found.id_limit},
              {"way", found.way},
              {"why", found.why},
              {"steps", Json::array()}};
  for (const auto& step : found.steps) {
    object["steps"].push_back({{"part", step.part},
                               {"component", step.component},
                               {"pattern", step.pattern},
                               {"engine", step.engine},
                               {"linear", step.is_linear}});
  }
  return object;
}

std::string inspection_text(const std::string& url, const tokenizer::Inspection& found) {
  std::string text = fmt::format("{}: {} of {}", url, found.model, counted(found.vocabulary, "token"));
  if (found.merges > 0) text += fmt::format(" and {}", counted(found.merges, "merge"));
  text += fmt::format("; {}, {} of them special; ids below {}\n", counted(found.added_tokens, "added token"),
                      found.special_tokens, found.id_limit);
  for (const auto& step : found.steps) {
    text += fmt::format("  {:<14} {}", step.part, step.component);
    if (!step.engine.empty()) text += fmt::format(", {}: {}", step.engine, printable(step.pattern));
    if (!step.is_linear)
      text += "\n                 hostile text may take it time that grows with the square of its length";
    text += "\n";
  }
  text += fmt::format("way: {}", found.way);
  if (found.way == "general") text += " (several times slower)";
  if (!found.why.empty()) text += fmt::format("; not byte-level: {}", printable(found.why));
  return text + "\n";
}

Status run_tokenizer_inspect(const std::string& url, Context& context) {
  ASSIGN_OR_RETURN(const std::string json, prepare::read_tokenizer(url));
  ASSIGN_OR_RETURN(const tokenizer::Inspection found, tokenizer::Tokenizer::inspect(json, url));
  context.out.print(inspection_json(url, found), inspection_text(url, found));
  return {};
}

}  // namespace

void add_tokenizer(Verbs& verbs) {
  CLI::App& group = verbs.add_group("tokenizer", "Inspect tokenizer files");
  auto url = std::make_shared<std::string>();
  CLI::App& app = verbs.add(
      group, "inspect", "Say what a tokenizer.json holds, and which way each of its steps is run",
      {"millrace tokenizer inspect tokenizer.json", "millrace tokenizer inspect s3://bucket/llama/tokenizer.json",
       "millrace tokenizer inspect tokenizer.json --json"},
      [url](Context& context) { return run_tokenizer_inspect(*url, context); });
  app.add_option("URL", *url, "The tokenizer.json or tiktoken.model: a path or a URL")->required()->option_text(" ");
}

}  // namespace millrace::cli
