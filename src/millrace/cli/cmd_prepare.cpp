// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/units.h"
#include "millrace/cli/command.h"
#include "millrace/prepare/prepare.h"

namespace millrace::cli {

namespace {

struct PrepareArgs {
  prepare::PrepareOptions options;
  std::optional<prepare::Task> task;
  std::string format = "webdataset";
  bool no_text = false;
  bool no_special_tokens = false;
  std::string finish;  // the folder of --finish, else empty
};

double per_second(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

void check_prepare(PrepareArgs& args) {
  if (!args.finish.empty()) {
    if (args.options.dry_run)
      throw CLI::ValidationError("--finish", "has no --dry-run: the same bytes come every time");
    if (!args.options.inputs.empty()) throw CLI::ValidationError("--finish", "reads records in URL and takes no INPUT");
    return;
  }
  if (args.options.inputs.empty()) throw CLI::ValidationError("INPUT", "name the raw text, or --finish URL");
  if (args.options.tokenizer.empty()) throw CLI::RequiredError("--tokenizer");
  if (args.options.output.empty()) throw CLI::RequiredError("--out");
  if (!args.task) args.task = usage_value("SLURM_ARRAY_TASK_ID", prepare::task_from_slurm());
  args.options.task = args.task.value_or(prepare::Task{});
  args.options.text = !args.no_text;
  args.options.add_special_tokens = !args.no_special_tokens;
}

Status finish_folder(const std::string& url, Output& out) {
  ASSIGN_OR_RETURN(const formats::Manifest manifest, prepare::finish(url));
  out.print({{"type", "manifest"},
             {"output", url},
             {"tasks", manifest.config.tasks},
             {"shards", manifest.shards.size()},
             {"documents", manifest.documents},
             {"tokens", manifest.tokens},
             {"input_bytes", manifest.input_bytes},
             {"invalid_utf8", manifest.invalid_utf8}},
            fmt::format("{} complete: {}, {}, {}, {}\n", url, counted(manifest.config.tasks, "task"),
                        counted(static_cast<int64_t>(manifest.shards.size()), "shard"),
                        counted(manifest.documents, "document"), counted(manifest.tokens, "token")));
  return {};
}

std::string prepare_text(const prepare::PrepareReport& report) {
  const auto shards = static_cast<int64_t>(report.part.shards.size());
  return fmt::format(
      "documents      {}\n"
      "tokens         {}\n"
      "read           {}\n"
      "written        {} in {}, {} of them kept from an earlier run\n"
      "invalid UTF-8  {} replaced\n"
      "time           {}, {}, {} per CPU second\n",
      format_count(report.part.documents), format_count(report.part.tokens), format_bytes(report.part.input_bytes),
      format_bytes(report.output_bytes), counted(shards, "shard"), format_count(report.shards_reused),
      counted(report.part.invalid_utf8, "sequence"), format_duration(report.seconds),
      format_rate(per_second(report.part.input_bytes, report.seconds)),
      format_bytes(static_cast<int64_t>(per_second(report.part.input_bytes, report.cpu_seconds))));
}

std::string dry_run_text(const prepare::PrepareOptions& options, const prepare::PrepareReport& report) {
  return fmt::format("would read {} in {} and write shards of task {} of {} below {}\n",
                     format_bytes(report.part.input_bytes),
                     counted(static_cast<int64_t>(report.part.inputs.size()), "file"), options.task.index,
                     options.task.count, options.output);
}

void print_prepare_report(const prepare::PrepareOptions& options, const prepare::PrepareReport& report, Output& out) {
  out.print({{"type", "prepare"},
             {"output", options.output},
             {"task", options.task.index},
             {"tasks", options.task.count},
             {"dry_run", options.dry_run},
             {"documents", report.part.documents},
             {"tokens", report.part.tokens},
             {"input_bytes", report.part.input_bytes},
             {"output_bytes", report.output_bytes},
             {"shards", report.part.shards.size()},
             {"shards_reused", report.shards_reused},
             {"invalid_utf8", report.part.invalid_utf8},
             {"seconds", report.seconds},
             {"cpu_seconds", report.cpu_seconds},
             {"bytes_per_second", per_second(report.part.input_bytes, report.seconds)},
             {"bytes_per_cpu_second", per_second(report.part.input_bytes, report.cpu_seconds)}},
            options.dry_run ? dry_run_text(options, report) : prepare_text(report));
}

Status run_prepare(const PrepareArgs& args, Context& context) {
  if (!args.finish.empty()) return finish_folder(args.finish, context.out);
  const prepare::PrepareOptions& options = args.options;
  if (args.format != "webdataset") {
    return fail(ErrorCode::kUnsupported, "--format {} is not there yet; webdataset is", args.format);
  }
  Progress progress;
  auto view = context.out.watch(progress, "prepare");
  ASSIGN_OR_RETURN(const prepare::PrepareReport report, prepare::prepare(options, context.stop, &progress));
  view.reset();
  print_prepare_report(options, report, context.out);
  if (options.dry_run) return {};
  if (options.task.count == 1) return finish_folder(options.output, context.out);
  context.out.print_text(fmt::format("task {} of {} done; after the last one: millrace prepare --finish {}\n",
                                     options.task.index, options.task.count, options.output));
  return {};
}

}  // namespace

void add_prepare(Verbs& verbs) {
  auto args = std::make_shared<PrepareArgs>();
  prepare::PrepareOptions& options = args->options;
  CLI::App& app = verbs.add(
      verbs.root(), "prepare", "Tokenise raw text into WebDataset shards with an index",
      {"millrace prepare raw/*.txt --tokenizer tokenizer.json --out shards",
       "millrace prepare raw/ --tokenizer tokenizer.json --out shards --task 3/10 --shard-size 1GB",
       "millrace prepare --finish shards"},
      [args](Context& context) { return run_prepare(*args, context); }, [args] { check_prepare(*args); });
  app.add_option("INPUT", options.inputs, "Files, folders, globs or brace patterns")->option_text(" ");
  app.add_option("--tokenizer", options.tokenizer, "A Hugging Face tokenizer.json")->option_text("URL");
  CLI::Option* out = app.add_option("--out", options.output, "Folder for the shards")->option_text("URL");
  app.add_option("--finish", args->finish, "Join the finished tasks of this folder into its manifest")
      ->option_text("URL")
      ->excludes(out);
  app.add_option_function<std::string>(
         "--task",
         [&task = args->task](const std::string& text) { task = usage_value("--task", prepare::parse_task(text)); },
         "Do the Ith of N tasks, counted from 0 (default: the Slurm array's, else 0/1)")
      ->option_text("I/N");
  add_choice_flag(
      app, "--format", {"webdataset", "megatron", "tokens"},
      [&format = args->format](const std::string& name) { format = name; }, "What to write (default: webdataset)");
  add_choice_flag(
      app, "--ids", {"npy", "json"}, [&ids = options.ids_format](const std::string& name) { ids = name; },
      "Token ids as token_ids.npy (uint32) or token_ids.json (default: npy)");
  add_document_flags(app, options.documents, options.max_document_bytes);
  app.add_option("--text-field", options.text_field, "Field of a jsonl object that holds the text (default: text)")
      ->option_text("NAME");
  app.add_flag("--no-text", args->no_text, "Leave text.txt out of the samples");
  app.add_flag("--no-special-tokens", args->no_special_tokens, "Without what the tokenizer's post-processor adds");
  add_size_flag(app, "--shard-size", options.shard_bytes, "Start a new shard at this size (default: one a task)");
  app.add_flag("--strict", options.strict_utf8, "Refuse invalid UTF-8 instead of replacing it");
  app.add_option("--threads", options.threads, "Worker threads (default: the CPUs of this process)")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  app.add_flag("--dry-run", options.dry_run, "Say what would be done; write nothing");
}

}  // namespace millrace::cli
