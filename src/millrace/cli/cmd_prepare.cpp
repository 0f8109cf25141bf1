// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/prepare/prepare.h"

namespace millrace::cli {

namespace {

struct PrepareArgs {
  prepare::PrepareOptions options;
  std::optional<prepare::Task> task;
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
  if (!args.options.ids_format.empty() &&
      (args.options.shards.format != prepare::OutputFormat::kWebDataset || args.options.shards.block_documents > 0)) {
    throw CLI::ValidationError("--ids", "is for tar shards without --block; other formats have their own form of ids");
  }
  args.options.shards.text = !args.no_text;
  args.options.shards.add_special_tokens = !args.no_special_tokens;
}

Status finish_folder(const std::string& url, Output& out) {
  ASSIGN_OR_RETURN(const formats::Manifest manifest, prepare::finish(url));
  out.print_done({{"type", "manifest"},
                  {"output", url},
                  {"tasks", manifest.config.tasks},
                  {"shards", manifest.shards.size()},
                  {"documents", manifest.documents},
                  {"tokens", manifest.tokens},
                  {"input_bytes", manifest.input_bytes},
                  {"invalid_utf8", manifest.counts.invalid_utf8},
                  {"rejected", manifest.counts.rejected},
                  {"duplicates", manifest.counts.duplicates},
                  {"filtered", manifest.counts.filtered},
                  {"empty", manifest.counts.empty}},
                 fmt::format("{} complete: {}, {}, {}, {}\n", url, counted(manifest.config.tasks, "task"),
                             counted(static_cast<int64_t>(manifest.shards.size()), "shard"),
                             counted(manifest.documents, "document"), counted(manifest.tokens, "token")));
  return {};
}

// "read 0.1 s, encode 2.3 s on average, write 0.4 s: encoding limits"
std::string stages_text(const prepare::PrepareReport& report) {
  const std::string_view limit = report.limiting_stage();
  if (limit.empty()) return "all was done before";
  return fmt::format("read {}, encode {} a thread, write {}: {} is what limits", format_duration(report.read_seconds),
                     format_duration(report.encode_seconds), format_duration(report.write_seconds), limit);
}

std::string prepare_text(const prepare::PrepareReport& report) {
  const formats::PartRecord& part = report.part;
  const auto shards = static_cast<int64_t>(part.shards.size());
  const double bytes_a_token =
      part.tokens > 0 ? static_cast<double>(part.input_bytes) / static_cast<double>(part.tokens) : 0;
  return fmt::format(
      "documents      {}\n"
      "tokens         {}, {:.2f} bytes of input each\n"
      "left out       {} without text, {} rejected, {} as duplicates, {} by their length\n"
      "read           {}\n"
      "written        {} in {}, {} of them kept from an earlier run\n"
      "invalid UTF-8  {} replaced\n"
      "time           {}, {}, {} per CPU second\n"
      "stages         {}\n",
      format_count(part.documents), format_count(part.tokens), bytes_a_token, format_count(part.counts.empty),
      format_count(part.counts.rejected), format_count(part.counts.duplicates), format_count(part.counts.filtered),
      format_bytes(part.input_bytes), format_bytes(report.output_bytes), counted(shards, "shard"),
      format_count(report.shards_reused), counted(part.counts.invalid_utf8, "sequence"),
      format_duration(report.seconds), format_rate(per_second(part.input_bytes, report.seconds)),
      format_bytes(static_cast<int64_t>(per_second(part.input_bytes, report.cpu_seconds))), stages_text(report));
}

std::string dry_run_text(const prepare::PrepareOptions& options, const prepare::PrepareReport& report) {
  const prepare::Estimate& estimate = *report.estimate;
  const double times = report.part.input_bytes > 0
                           ? static_cast<double>(estimate.output_bytes) / static_cast<double>(report.part.input_bytes)
                           : 0;
  return fmt::format(
      "would read {} in {} and write shards of task {} of {} below {}\n"
      "expected: {}, {}, {} on disk ({:.1f} times the input), estimated from {}\n{}",
      format_bytes(report.part.input_bytes), counted(static_cast<int64_t>(report.part.inputs.size()), "file"),
      options.task.index, options.task.count, options.output, counted(estimate.documents, "document"),
      counted(estimate.tokens, "token"), format_bytes(estimate.output_bytes), times,
      estimate.sampled_bytes == report.part.input_bytes ? "all of it" : format_bytes(estimate.sampled_bytes) + " of it",
      estimate.advice.empty() ? "" : estimate.advice + "\n");
}

void print_prepare_report(const prepare::PrepareOptions& options, const prepare::PrepareReport& report, Output& out) {
  Json object = {{"type", "prepare"},
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
                 {"invalid_utf8", report.part.counts.invalid_utf8},
                 {"rejected", report.part.counts.rejected},
                 {"duplicates", report.part.counts.duplicates},
                 {"filtered", report.part.counts.filtered},
                 {"empty", report.part.counts.empty},
                 {"read_seconds", report.read_seconds},
                 {"encode_seconds", report.encode_seconds},
                 {"write_seconds", report.write_seconds},
                 {"limited_by", report.limiting_stage()},
                 {"seconds", report.seconds},
                 {"cpu_seconds", report.cpu_seconds},
                 {"bytes_per_second", per_second(report.part.input_bytes, report.seconds)},
                 {"bytes_per_cpu_second", per_second(report.part.input_bytes, report.cpu_seconds)}};
  if (report.estimate) {
    object["expected_documents"] = report.estimate->documents;
    object["expected_tokens"] = report.estimate->tokens;
    object["expected_output_bytes"] = report.estimate->output_bytes;
    object["sampled_bytes"] = report.estimate->sampled_bytes;
  }
  out.print_done(object, options.dry_run ? dry_run_text(options, report) : prepare_text(report), options.dry_run);
}

Status run_prepare(const PrepareArgs& args, Context& context) {
  if (!args.finish.empty()) return finish_folder(args.finish, context.out);
  prepare::PrepareOptions options = args.options;
  std::optional<prepare::Task> task = args.task;
  if (!task) {
    ASSIGN_OR_RETURN(task, prepare::task_from_slurm(options.output));
  }
  options.task = task.value_or(prepare::Task{});
  Progress progress;
  auto view = context.out.watch(progress, "prepare");
  ASSIGN_OR_RETURN(const prepare::PrepareReport report, prepare::prepare(options, context.stop, &progress));
  view.reset();
  print_prepare_report(options, report, context.out);
  if (options.dry_run) return {};
  if (options.task.count == 1) return finish_folder(options.output, context.out);
  context.out.note(fmt::format("task {} of {} done; after the last one: millrace prepare --finish {}",
                               options.task.index, options.task.count, options.output));
  return {};
}

void add_output_flags(CLI::App& app, PrepareArgs& args) {
  prepare::PrepareOptions& options = args.options;
  add_choice_flag(
      app, "--format", {"webdataset", "megatron", "tokens"},
      [&options](const std::string& name) {
        options.shards.format = usage_value("--format", prepare::parse_output_format(name));
      },
      "Output: tar shards, Megatron's bin and idx, or llm.c's token files (default: webdataset)");
  add_choice_flag(
      app, "--ids", {"npy", "json", "raw"}, [&ids = options.ids_format](const std::string& name) { ids = name; },
      "Form of ids in tar shards: token_ids.npy (uint32), token_ids.json, or raw token_ids.u16 or .u32 (default: npy)");
  app.add_flag("--no-text", args.no_text, "Leave text.txt out of the samples");
  app.add_option("--block", options.shards.block_documents,
                 "In tar shards, store the ids of N documents in one member, without text: the smallest shards")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->option_text("N");
  add_size_flag(app, "--shard-size", options.shards.shard_bytes,
                "Start a new shard at this size (default: one shard per task)");
}

// The choice of documents.
void add_selection_flags(CLI::App& app, prepare::PrepareOptions& options) {
  app.add_flag("--strip", options.shards.rules.strip,
               "Remove white space at a document's ends, as Python's str.strip()");
  add_keep_empty_flag(app, options.shards.rules.keep_empty);
  app.add_flag("--strict", options.shards.rules.strict_utf8, "Make invalid UTF-8 an error, instead of replacing it");
  add_choice_flag(
      app, "--on-error", {"fail", "skip"},
      [&options](const std::string& policy) { options.shards.rules.skip_errors = policy == "skip"; },
      "At a document with an error: stop, or leave it out and write it to SHARD.rejected.jsonl (default: fail)");
  app.add_option("--max-errors", options.max_errors, "Fail when more documents than this are left out (default: 1000)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  app.add_flag("--dedup", options.shards.rules.dedup, "Leave out documents whose text occurred earlier in the task");
  add_size_flag(app, "--dedup-memory", options.dedup_memory_bytes,
                "Memory for --dedup, at most 64 bytes per document (default: 1GiB)");
  add_size_flag(app, "--min-bytes", options.shards.rules.min_bytes, "Leave out documents with less text");
  add_size_flag(app, "--max-bytes", options.shards.rules.max_bytes, "Leave out documents with more text");
  app.add_option("--min-tokens", options.shards.rules.min_tokens, "Leave out documents with fewer ids")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  app.add_option("--max-tokens", options.shards.rules.max_tokens, "Leave out documents with more ids")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
}

}  // namespace

void add_prepare(Verbs& verbs) {
  auto args = std::make_shared<PrepareArgs>();
  prepare::PrepareOptions& options = args->options;
  CLI::App& app = verbs.add(
      verbs.root(), "prepare", "Tokenise raw text into shards with an index",
      {"millrace prepare raw/*.txt --tokenizer tokenizer.json --out shards",
       "millrace prepare raw/ --tokenizer tokenizer.json --out shards --task 3/10 --shard-size 1GB",
       "millrace prepare --finish shards"},
      [args](Context& context) { return run_prepare(*args, context); }, [args] { check_prepare(*args); });
  app.add_option("INPUT", options.inputs, kInputHelp)->option_text(" ");
  app.add_option("--tokenizer", options.tokenizer, "A Hugging Face tokenizer.json, or a tiktoken.model")
      ->option_text("URL");
  CLI::Option* out = app.add_option("--out", options.output, "Folder for the shards")->option_text("URL");
  app.add_option("--finish", args->finish, "Join the finished tasks of this folder into its manifest")
      ->option_text("URL")
      ->excludes(out);
  app.add_option_function<std::string>(
         "--task",
         [&task = args->task](const std::string& text) { task = usage_value("--task", prepare::parse_task(text)); },
         "Do the Ith of N tasks, counted from 0 (default: the Slurm array's, else 0/1)")
      ->option_text("I/N");
  add_output_flags(app, *args);
  add_document_flags(app, options.shards.documents, options.shards.text_field, options.shards.rules.max_document_bytes);
  add_text_flags(app, options.text_rules.json_as_text, options.text_rules.max_invalid_utf8);
  CLI::Option* const documents = app.get_option("--documents");
  add_choice_flag(
      app, "--chat", {"chatml", "llama-3", "llama-2"},
      [&options, documents](const std::string& name) {
        options.shards.chat = name;
        if (documents->empty()) options.shards.documents = formats::DocumentMode::kJsonl;
      },
      "Read lines of jsonl as conversations: render them with this template, and store a mask of the learned tokens");
  app.add_flag("--refuse-control-text", options.shards.refuse_control_text,
               "Refuse messages that contain the template's control tokens");
  app.add_flag("--last-turn-only", options.shards.last_turn_only, "Learn only the last answer of a conversation")
      ->needs("--chat");
  app.add_flag("--no-special-tokens", args->no_special_tokens,
               "Leave out the tokens that the tokenizer's post-processor adds");
  app.add_option("--bos", options.shards.bos, "Also put this token before every document")->option_text("TOKEN");
  app.add_option("--eos", options.shards.eos, "Also put this token after every document")->option_text("TOKEN");
  add_selection_flags(app, options);
  app.add_option("--threads", options.threads, "Worker threads (default: the CPUs of this process)")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  app.add_flag("--replace", options.replace, "Write a finished task again when its inputs have changed");
  app.add_flag("--dry-run", options.dry_run,
               "Report what would be done and estimate its size from a sample, without writing");
}

}  // namespace millrace::cli
