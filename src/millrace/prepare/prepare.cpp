// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/prepare.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "millrace/base/log.h"
#include "millrace/formats/megatron.h"
#include "millrace/prepare/detail/estimate.h"
#include "millrace/prepare/detail/prepare_task.h"
#include "millrace/prepare/detail/task_run.h"
#include "millrace/prepare/tokenizer_file.h"

namespace millrace::prepare {

namespace {

// Ids of a document are counted in 32 bits, and a byte is at most three ids (U+FFFD in single bytes).
constexpr int64_t kMaxDocumentBytes = 1 << 30;

double cpu_seconds_used() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

tl::unexpected<Error> wrong(std::string_view reason) {
  return fail(ErrorCode::kInvalidArgument, "{}", reason);
}

Status check_ids_format(const std::string& ids, const formats::ShardOptions& shards) {
  if (ids.empty()) return {};
  if (ids != "npy" && ids != "json" && ids != "raw") {
    return fail(ErrorCode::kInvalidArgument, "ids format \"{}\": expected npy, json or raw", ids);
  }
  if (shards.format == OutputFormat::kWebDataset && shards.block_documents == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              "ids format \"{}\": {} have their own form of ids; only webdataset shards of one document a sample "
              "leave a choice",
              ids, shards.block_documents > 0 ? "blocks of documents" : output_format_name(shards.format));
}

Status check_chat(const formats::ShardOptions& shards) {
  if (shards.chat.empty()) return {};
  if (shards.format != OutputFormat::kWebDataset || shards.block_documents > 0) {
    return wrong(
        "conversations have a mask of what is learned, and only webdataset shards of one document a sample have a "
        "place for it");
  }
  if (shards.documents != formats::DocumentMode::kJsonl) return wrong("conversations are lines of jsonl");
  if (shards.rules.strip) return wrong("what white space a conversation has is the chat template's business");
  if (!shards.bos.empty() || !shards.eos.empty()) {
    return wrong("what stands around a conversation is the chat template's business, not bos or eos");
  }
  return {};
}

Status check_rules(const formats::DocumentRules& rules) {
  if (rules.max_document_bytes < 1 || rules.max_document_bytes > kMaxDocumentBytes) {
    return fail(ErrorCode::kInvalidArgument, "max document bytes is {}: expected 1 to {}", rules.max_document_bytes,
                kMaxDocumentBytes);
  }
  for (const auto& [least, most] :
       {std::pair(rules.min_bytes, rules.max_bytes), std::pair(rules.min_tokens, rules.max_tokens)}) {
    if (least < 0 || most < 0 || (most > 0 && least > most)) {
      return fail(ErrorCode::kInvalidArgument, "documents of {} to {} bytes or tokens: there are none", least, most);
    }
  }
  return {};
}

Status check_options(const PrepareOptions& options) {
  const formats::ShardOptions& shards = options.shards;
  if (options.task.index < 0 || options.task.index >= options.task.count) {
    return fail(ErrorCode::kInvalidArgument, "task {}/{}: there is no such task", options.task.index,
                options.task.count);
  }
  RETURN_IF_ERROR(check_ids_format(options.ids_format, shards));
  if (shards.shard_bytes < 0 || options.threads < 0) {
    return fail(ErrorCode::kInvalidArgument, "shard bytes ({}) and threads ({}) cannot be negative", shards.shard_bytes,
                options.threads);
  }
  RETURN_IF_ERROR(check_rules(shards.rules));
  RETURN_IF_ERROR(check_chat(shards));
  if (shards.block_documents < 0) return wrong("documents a block cannot be negative");
  if (shards.block_documents > 0 && shards.format != OutputFormat::kWebDataset) {
    return wrong("documents share a member in webdataset shards only; other formats have no members");
  }
  if (options.max_errors < 0 || options.dedup_memory_bytes < 0) {
    return wrong("the number of errors and the memory for duplicates cannot be negative");
  }
  const double max_invalid = options.text_rules.max_invalid_utf8;
  if (!(max_invalid >= 0 && max_invalid <= 1)) {
    return fail(ErrorCode::kInvalidArgument, "{} as the share of ill-formed UTF-8: expected 0 to 1", max_invalid);
  }
  return {};
}

// The id of a token for one end of every document. `at_that_end`: the token that the post-processor puts there.
Result<std::optional<uint32_t>> end_token(const tokenizer::Tokenizer& tokenizer, std::string_view what,
                                          const std::string& token, std::optional<uint32_t> at_that_end) {
  if (token.empty()) return std::optional<uint32_t>();
  const auto id = tokenizer.token_to_id(token);
  if (!id) return fail(ErrorCode::kNotFound, "{} {}: the tokenizer has no such token", what, token);
  if (id == at_that_end) {
    return fail(ErrorCode::kInvalidArgument,
                "{} {}: the tokenizer's post-processor puts it there already; leave it out, or the special tokens",
                what, token);
  }
  return id;
}

Result<SampleFormat> sample_format(const PrepareOptions& options,
                                   std::shared_ptr<const tokenizer::Tokenizer> tokenizer) {
  SampleFormat format{.task = options.task.index, .options = options.shards};
  const formats::ShardOptions& shards = format.options;
  const int64_t narrow = shards.format == OutputFormat::kMegatron ? formats::kMegatronNarrowVocabulary - 1 : 1 << 16;
  format.id_width = tokenizer->id_limit() <= narrow ? 2 : 4;
  const std::string_view raw = format.id_width == 2 ? "u16" : "u32";
  format.ids_field = format.raw_ids()              ? std::string(raw)
                     : options.ids_format == "raw" ? fmt::format("token_ids.{}", raw)
                     : options.ids_format.empty()  ? "token_ids.npy"
                                                   : "token_ids." + options.ids_format;
  if (!shards.chat.empty()) {
    const chat::ChatOptions chat_options{.refuse_control_text = shards.refuse_control_text,
                                         .last_turn_only = shards.last_turn_only};
    ASSIGN_OR_RETURN(format.chat, chat::ChatTemplate::named(shards.chat, tokenizer, chat_options));
    return format;
  }
  std::optional<uint32_t> first, last;  // of what the post-processor adds
  if (const auto before = tokenizer->ids_before(); shards.add_special_tokens && !before.empty()) first = before.front();
  if (const auto behind = tokenizer->ids_behind(); shards.add_special_tokens && !behind.empty()) last = behind.back();
  ASSIGN_OR_RETURN(format.bos, end_token(*tokenizer, "bos", shards.bos, first));
  ASSIGN_OR_RETURN(format.eos, end_token(*tokenizer, "eos", shards.eos, last));
  const bool separated = format.bos || format.eos || first || last;
  if (shards.format == OutputFormat::kTokens && !separated) {
    log(LogLevel::kWarning,
        "documents will follow each other in the token files with nothing between them; eos or bos names a token");
  }
  return format;
}

formats::ShardConfig shard_config(int64_t tasks, const SampleFormat& format, const tokenizer::Tokenizer& tokenizer) {
  formats::ShardConfig config{.tasks = tasks,
                              .tokenizer_hash = tokenizer.hash(),
                              .id_limit = static_cast<int64_t>(tokenizer.id_limit()),
                              .ids_field = format.ids_field,
                              .options = format.options};
  config.options.text = format.has_text();
  return config;
}

// Opens and checks all that a task needs, so that what can go wrong early does.
Result<TaskSetup> set_up(const PrepareOptions& options, const std::stop_token& stop) {
  TaskSetup setup;
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(setup.folder, open_url(options.output));
  ASSIGN_OR_RETURN(const std::vector<FoundInput> all, find_inputs(options.inputs));
  ASSIGN_OR_RETURN(setup.inputs,
                   open_inputs(all, options.task, document_options(options.shards), options.text_rules, stop));
  RETURN_IF_ERROR(check_fronts(setup.inputs));
  // A task of several may have no text; finish() sees whether none of them has.
  if (options.task.count == 1 && total_bytes(setup.inputs) == 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: there is no text to prepare, as {}", options.inputs.front(),
                all.size() == 1 ? "the file is empty" : fmt::format("all {} files are empty", all.size()));
  }
  ASSIGN_OR_RETURN(setup.tokenizer, with_context(load_tokenizer(options.tokenizer), "tokenizer"));
  ASSIGN_OR_RETURN(setup.format, sample_format(options, setup.tokenizer));
  setup.config = shard_config(options.task.count, setup.format, *setup.tokenizer);
  return setup;
}

}  // namespace

std::string_view PrepareReport::limiting_stage() const {
  const double most = std::max({read_seconds, encode_seconds, write_seconds});
  if (most == 0) return {};
  if (most == encode_seconds) return "encode";
  return most == read_seconds ? "read" : "write";
}

Result<PrepareReport> prepare_task(const PrepareOptions& options, PipelineOptions pipeline, std::stop_token stop,
                                   Progress* progress, Metrics* metrics) {
  const auto start = Clock::now();
  const double cpu_start = cpu_seconds_used();
  ASSIGN_OR_RETURN(const TaskSetup setup, set_up(options, stop));
  pipeline.threads = options.threads > 0 ? options.threads : available_cpus();
  ASSIGN_OR_RETURN(const auto memory, reserve_memory(pipeline, *MemoryBudget::process()));
  Progress unwatched;
  Metrics unshared;
  Metrics& counted = metrics != nullptr ? *metrics : unshared;
  const double read = counted.seconds(Metric::kReadSeconds), encode = counted.seconds(Metric::kEncodeSeconds),
               write = counted.seconds(Metric::kWriteSeconds);
  TaskRun run(options, setup, pipeline, stop, progress != nullptr ? *progress : unwatched, counted);
  ASSIGN_OR_RETURN(PrepareReport report, run.run());
  if (options.dry_run) {
    ASSIGN_OR_RETURN(report.estimate, estimate_task(setup.inputs, setup.format, setup.tokenizer, stop));
  }
  report.read_seconds = counted.seconds(Metric::kReadSeconds) - read;
  report.encode_seconds = (counted.seconds(Metric::kEncodeSeconds) - encode) / pipeline.threads;
  report.write_seconds = counted.seconds(Metric::kWriteSeconds) - write;
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.cpu_seconds = cpu_seconds_used() - cpu_start;
  return report;
}

Result<PrepareReport> prepare(const PrepareOptions& options, std::stop_token stop, Progress* progress,
                              Metrics* metrics) {
  return prepare_task(options, {}, std::move(stop), progress, metrics);
}

}  // namespace millrace::prepare
