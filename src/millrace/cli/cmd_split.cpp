// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/prepare/prepare.h"

namespace millrace::cli {

namespace {

void print_split_part(Output& out, const prepare::SplitReport::Part& part) {
  out.print_json({{"type", "split_part"}, {"name", part.name}, {"bytes", part.bytes}, {"documents", part.documents}});
}

Status run_split(const prepare::SplitOptions& options, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, "split");
  ASSIGN_OR_RETURN(const prepare::SplitReport report, prepare::split(options, context.stop, &progress));
  view.reset();
  TextTable table({{"part"}, {"bytes", true}, {"documents", true}});
  for (const auto& part : report.parts) {
    print_split_part(context.out, part);
    table.add({part.name, format_bytes(part.bytes), format_count(part.documents)});
  }
  context.out.print_done(
      {{"type", "split"},
       {"output", options.output},
       {"parts", report.parts.size()},
       {"bytes", report.bytes},
       {"documents", report.documents},
       {"empty", report.empty},
       {"dry_run", options.dry_run}},
      table.to_string() +
          fmt::format("{}{}, {}, in {} below {}\n", options.dry_run ? "would write " : "",
                      counted(report.documents, "document"), format_bytes(report.bytes),
                      counted(static_cast<int64_t>(report.parts.size()), "part"), options.output) +
          (report.empty > 0 ? fmt::format("left out {} without text\n", counted(report.empty, "row")) : ""),
      options.dry_run);
  return {};
}

}  // namespace

void add_split(Verbs& verbs) {
  auto options = std::make_shared<prepare::SplitOptions>();
  CLI::App& app = verbs.add(verbs.root(), "split", "Cut raw text into balanced files without breaking a document",
                            {"millrace split books/*.txt --out raw --parts 8",
                             "millrace split corpus.jsonl --out raw --parts 64 --documents jsonl",
                             "millrace split wiki/ --out raw --parts 4 --documents paragraph --dry-run"},
                            [options](Context& context) { return run_split(*options, context); });
  app.add_option("INPUT", options->inputs, kInputHelp)->required()->option_text(" ");
  app.add_option("--out", options->output, "Folder for the parts")->required()->option_text("URL");
  app.add_option("--parts", options->parts, "Number of files to write")
      ->required()
      ->check(CLI::Range(1, 1'000'000))
      ->option_text("N");
  add_document_flags(app, options->documents.mode, options->documents.text_field,
                     options->documents.max_document_bytes);
  add_text_flags(app, options->text_rules.json_as_text, options->text_rules.max_invalid_utf8);
  app.add_option("--validation", options->validation,
                 "Put this share of the documents, chosen by their text, into a separate file (0.01: one in a hundred)")
      ->check(CLI::Range(0.0, 0.999999))
      ->option_text("SHARE");
  app.add_option("--seed", options->seed, "Seed of the choice for --validation (default: 0)")->option_text("N");
  add_keep_empty_flag(app, options->documents.keep_empty);
  app.add_flag("--replace", options->replace, "Overwrite existing parts with other content");
  app.add_flag("--dry-run", options->dry_run, "Report what would be written, without writing");
}

}  // namespace millrace::cli
