// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"

namespace millrace::cli {

namespace {

// "millrace shards check" without the program's name: {"shards", "check"}.
std::vector<std::string> verb_path(const CLI::App& app) {
  std::vector<std::string> path;
  for (const CLI::App* at = &app; at->get_parent() != nullptr; at = at->get_parent()) path.push_back(at->get_name());
  std::reverse(path.begin(), path.end());
  return path;
}

// By long name, or a positional argument by its name in lower case.
CLI::Option* find_option(CLI::App& app, const std::string& name) {
  if (CLI::Option* option = app.get_option_no_throw("--" + name); option != nullptr) return option;
  for (CLI::Option* option : app.get_options()) {
    if (option->get_positional() && lower_case(option->get_single_name()) == name) return option;
  }
  return nullptr;
}

void apply_config_item(CLI::App& app, const std::string& path, const CLI::ConfigItem& item) {
  CLI::Option* option = find_option(app, item.name);
  if (option == nullptr || !option->get_configurable()) {
    throw CLI::ValidationError("--config", path + ": '" + item.name + "' is not a flag of '" + app.get_name() + "'");
  }
  if (!option->empty()) return;  // the command line wins
  if (option->get_expected_min() == 0) {
    option->add_result(option->get_flag_value(item.name, CLI::ConfigTOML().to_flag(item)));
  } else {
    option->add_result(item.inputs);
  }
}

LogLevel parse_log_level(std::string_view name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning}) {
    if (log_level_name(level) == name) return level;
  }
  return LogLevel::kError;
}

}  // namespace

CLI::App& Verbs::add_group(const std::string& name, const std::string& description) {
  CLI::App& group = *root_.add_subcommand(name, description);
  group.group("Verbs");
  group.require_subcommand(1);
  return group;
}

CLI::App& Verbs::add(CLI::App& parent, const std::string& name, const std::string& description,
                     const std::array<std::string, 3>& examples, RunVerb run, std::function<void()> check) {
  CLI::App& app = *parent.add_subcommand(name, description);
  app.group("Verbs");
  std::string footer = "Examples:";
  for (const std::string& example : examples) footer += "\n  " + example;
  app.footer(footer);
  // The first option, so that options of the file are parsed like the rest.
  app.add_option_function<std::string>(
         "--config", [&app](const std::string& path) { apply_config_file(app, path); },
         "Take missing flags from this TOML file")
      ->option_text("FILE")
      ->configurable(false)
      ->group("Everywhere");
  app.add_flag("--json", options_.json, "Print results as JSON, one object a line")->group("Everywhere");
  app.add_flag("--quiet", options_.quiet, "No progress, notes or report; errors and requested results remain")
      ->group("Everywhere");
  add_choice_flag(
      app, "--log", {"debug", "info", "warning", "error"},
      [this](const std::string& level) { options_.log = parse_log_level(level); },
      "Lowest level of log lines on stderr (default: warning)")
      ->group("Everywhere");
  app.add_option("--endpoint-url", url_options_.endpoint_url, "Send requests for s3:// here (default: AWS's own)")
      ->option_text("URL")
      ->group("Everywhere");
  app.add_option_function<int>(
         "--timeout", [this](int seconds) { url_options_.timeout = std::chrono::seconds(seconds); },
         "For s3:// and http(s)://: stop retrying a request after this time, and fail when it is silent for this long "
         "(default: 120)")
      ->check(CLI::Range(1, 1'000'000))
      ->option_text("SECONDS")
      ->group("Everywhere");
  app.add_flag_callback(
         "--no-sign-request", [this] { url_options_.anonymous = true; }, "Send S3 requests without credentials")
      ->group("Everywhere");
  app.callback([this, run = std::move(run), check = std::move(check)] {
    if (check) check();
    chosen_ = run;
  });
  return app;
}

void add_size_flag(CLI::App& app, const std::string& flag, int64_t& bytes, const std::string& description,
                   int64_t least) {
  app.add_option_function<std::string>(
         flag,
         [flag, &bytes, least](const std::string& text) {
           bytes = usage_value(flag, parse_bytes(text));
           if (bytes < least) {
             throw CLI::ValidationError(flag, fmt::format("at least {} are needed", format_bytes(least)));
           }
         },
         description)
      ->option_text("SIZE");
}

CLI::Option* add_choice_flag(CLI::App& app, const std::string& flag, const std::vector<std::string>& choices,
                             const std::function<void(const std::string&)>& set, const std::string& description) {
  return app.add_option_function<std::string>(flag, set, description)
      ->check(CLI::IsMember(choices))
      ->option_text(CLI::detail::join(choices, "|"));
}

std::string skipped_text(const formats::TarSkipped& skipped) {
  std::string text;
  if (skipped.links > 0) {
    text = fmt::format(
        "{} in the archives hold no data and are passed over: samples that are only links are missing, and others lack "
        "these fields (pack with `tar -h --hard-dereference`)\n",
        counted(skipped.links, "link"));
  }
  if (skipped.unnamed > 0) {
    text += fmt::format(
        "{} in the archives have no dot in their names and are passed over, because a sample's key ends at the first "
        "dot; the first is {} (give them an extension, such as NAME.bin)\n",
        counted(skipped.unnamed, "file"), skipped.first_unnamed);
  }
  return text;
}

void add_shard_arguments(CLI::App& app, std::vector<std::string>& urls) {
  app.add_option("URL", urls, "Folders of shards, shards (*.tar, *.bin), globs or brace patterns of them")
      ->required()
      ->option_text(" ");
}

void add_document_flags(CLI::App& app, formats::DocumentMode& mode, std::string& text_field,
                        int64_t& max_document_bytes) {
  add_choice_flag(
      app, "--documents", {"line", "paragraph", "file", "jsonl"},
      [&mode](const std::string& name) { mode = usage_value("--documents", formats::parse_document_mode(name)); },
      "What one document is (default: line); in a Parquet table, a row");
  app.add_option("--text-field", text_field,
                 "Field of a jsonl object, or column of a table, that holds the text (default: text)")
      ->option_text("NAME");
  add_size_flag(app, "--max-document-bytes", max_document_bytes, "A longer document is an error (default: 64MiB)");
}

void add_keep_empty_flag(CLI::App& app, bool& keep_empty) {
  app.add_flag("--keep-empty", keep_empty,
               "Keep texts that are empty or only white space (default: skip them in every format)");
}

void add_text_flags(CLI::App& app, bool& json_as_text, double& max_invalid_utf8) {
  app.add_flag("--json-as-text", json_as_text, "Read JSON as lines or paragraphs, braces included");
  app.add_option("--max-invalid", max_invalid_utf8,
                 "Refuse a file with more ill-formed UTF-8 sequences per byte than this (default: 0.001; 1: none)")
      ->check(CLI::Range(0.0, 1.0))
      ->option_text("SHARE");
}

void apply_config_file(CLI::App& app, const std::string& path) {
  std::ifstream file(path);
  if (!file) throw CLI::ValidationError("--config", "cannot read " + path);
  const std::vector<std::string> verb = verb_path(app);
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
    const bool is_section_mark = item.name == "++" || item.name == "--";
    if (!is_section_mark && (item.parents.empty() || item.parents == verb)) apply_config_item(app, path, item);
  }
}

}  // namespace millrace::cli
