// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/prepare.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>

#include "millrace/base/log.h"
#include "millrace/formats/megatron.h"
#include "millrace/prepare/detail/estimate.h"
#include "millrace/prepare/detail/prepare_task.h"
#include "millrace/prepare/detail/task_run.h"

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

Status check_options(const PrepareOptions& options) {
  const auto wrong = [](std::string_view reason) { return fail(ErrorCode::kInvalidArgument, "{}", reason); };
  if (options.task.index < 0 || options.task.index >= options.task.count) {
    return fail(ErrorCode::kInvalidArgument, "task {}/{}: there is no such task", options.task.index,
                options.task.count);
  }
  const std::string& ids = options.ids_format;
  if (!ids.empty() && ids != "npy" && ids != "json" && ids != "raw") {
    return fail(ErrorCode::kInvalidArgument, "ids format \"{}\": expected npy, json or raw", ids);
  }
  if (!ids.empty() && (options.format != OutputFormat::kWebDataset || options.block_documents > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                "ids format \"{}\": {} have their own form of ids; only webdataset shards of one document a sample "
                "leave a choice",
                ids, options.block_documents > 0 ? "blocks of documents" : output_format_name(options.format));
  }
  if (options.shard_bytes < 0 || options.threads < 0) {
    return fail(ErrorCode::kInvalidArgument, "shard bytes ({}) and threads ({}) cannot be negative",
                options.shard_bytes, options.threads);
  }
  if (options.rules.max_document_bytes < 1 || options.rules.max_document_bytes > kMaxDocumentBytes) {
    return fail(ErrorCode::kInvalidArgument, "max document bytes is {}: expected 1 to {}",
                options.rules.max_document_bytes, kMaxDocumentBytes);
  }
  if (!options.chat.empty()) {
    if (options.format != OutputFormat::kWebDataset || options.block_documents > 0) {
      return wrong(
          "conversations have a mask of what is learned, and only webdataset shards of one document a sample "
          "have a place for it");
    }
    if (options.documents != formats::DocumentMode::kJsonl) return wrong("conversations are lines of jsonl");
    if (options.rules.strip) return wrong("what white space a conversation has is the chat template's business");
    if (!options.bos.empty() || !options.eos.empty()) {
      return wrong("what stands around a conversation is the chat template's business, not bos or eos");
    }
  }
  if (options.block_documents < 0) return wrong("documents a block cannot be negative");
  if (options.block_documents > 0 && options.format != OutputFormat::kWebDataset) {
    return wrong("documents share a member in webdataset shards only; other formats have no members");
  }
  const formats::DocumentRules& rules = options.rules;
  for (const auto& [least, most] :
       {std::pair(rules.min_bytes, rules.max_bytes), std::pair(rules.min_tokens, rules.max_tokens)}) {
    if (least < 0 || most < 0 || (most > 0 && least > most)) {
      return fail(ErrorCode::kInvalidArgument, "documents of {} to {} bytes or tokens: there are none", least, most);
    }
  }
  if (options.max_errors < 0 || options.dedup_memory_bytes < 0) {
    return wrong("the number of errors and the memory for duplicates cannot be negative");
  }
  if (!(options.max_invalid_utf8 >= 0 && options.max_invalid_utf8 <= 1)) {
    return fail(ErrorCode::kInvalidArgument, "{} as the share of ill-formed UTF-8: expected 0 to 1",
                options.max_invalid_utf8);
  }
  return {};
}

Result<std::shared_ptr<const tokenizer::Tokenizer>> load_tokenizer(const std::string& url) {
  ASSIGN_OR_RETURN(const Location at, with_context(open_url(url), "tokenizer"));
  ASSIGN_OR_RETURN(const auto file, with_context(at.storage->open_read(at.key), "tokenizer"));
  return tokenizer::Tokenizer::from_file(*file, url);
}

// The id of a token that is to stand at one end of every document. `at_that_end`: what the post-processor puts there.
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
  SampleFormat format{.task = options.task.index,
                      .output = options.format,
                      .documents = options.documents,
                      .text_field = options.text_field,
                      .block_documents = options.block_documents,
                      .add_special_tokens = options.add_special_tokens,
                      .rules = options.rules};
  const int64_t narrow = options.format == OutputFormat::kMegatron ? formats::kMegatronNarrowVocabulary - 1 : 1 << 16;
  format.id_width = tokenizer->id_limit() <= narrow ? 2 : 4;
  const std::string_view raw = format.id_width == 2 ? "u16" : "u32";
  format.ids_field = format.raw_ids()              ? std::string(raw)
                     : options.ids_format == "raw" ? fmt::format("token_ids.{}", raw)
                     : options.ids_format.empty()  ? "token_ids.npy"
                                                   : "token_ids." + options.ids_format;
  format.text = options.text && !format.raw_ids();

  if (!options.chat.empty()) {
    ASSIGN_OR_RETURN(format.chat, tokenizer::ChatTemplate::named(options.chat, tokenizer,
                                                                 {.refuse_control_text = options.refuse_control_text}));
    if (format.text_field == "text") format.text_field.clear();
    return format;
  }
  std::optional<uint32_t> first, last;  // of what the post-processor adds
  if (const auto before = tokenizer->ids_before(); options.add_special_tokens && !before.empty())
    first = before.front();
  if (const auto behind = tokenizer->ids_behind(); options.add_special_tokens && !behind.empty()) last = behind.back();
  ASSIGN_OR_RETURN(format.bos, end_token(*tokenizer, "bos", options.bos, first));
  ASSIGN_OR_RETURN(format.eos, end_token(*tokenizer, "eos", options.eos, last));
  const bool separated = format.bos || format.eos || first || last;
  if (options.format == OutputFormat::kTokens && !separated) {
    log(LogLevel::kWarning,
        "documents will follow each other in the token files with nothing between them; eos or bos names a token");
  }
  return format;
}

formats::ShardConfig shard_config(const PrepareOptions& options, const SampleFormat& format,
                                  const tokenizer::Tokenizer& tokenizer) {
  return {.tasks = options.task.count,
          .format = std::string(output_format_name(options.format)),
          .tokenizer_hash = tokenizer.hash(),
          .id_limit = static_cast<int64_t>(tokenizer.id_limit()),
          .ids_field = format.ids_field,
          .block_documents = options.block_documents,
          .text = format.text,
          .shard_bytes = options.shard_bytes,
          .documents = std::string(formats::document_mode_name(options.documents)),
          .text_field = options.text_field,
          .chat = options.chat,
          .refuse_control_text = options.refuse_control_text,
          .add_special_tokens = options.add_special_tokens,
          .bos = options.bos,
          .eos = options.eos,
          .rules = options.rules};
}

constexpr std::array<std::pair<OutputFormat, std::string_view>, 3> kFormatNames{
    {{OutputFormat::kWebDataset, "webdataset"},
     {OutputFormat::kMegatron, "megatron"},
     {OutputFormat::kTokens, "tokens"}}};

}  // namespace

Result<OutputFormat> parse_output_format(std::string_view name) {
  for (const auto& [format, text] : kFormatNames) {
    if (text == name) return format;
  }
  return fail(ErrorCode::kInvalidArgument, "'{}': shards are written as webdataset, megatron or tokens", name);
}

std::string_view output_format_name(OutputFormat format) {
  return kFormatNames[static_cast<size_t>(format)].second;
}

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
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(Location folder, open_url(options.output));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, expand_inputs(options.inputs));
  ASSIGN_OR_RETURN(const std::vector<Input> inputs, pin_inputs(all, options.task, stop));
  RETURN_IF_ERROR(check_inputs(
      inputs, {.mode = options.documents, .text_field = options.text_field},
      {.mode = options.documents, .json_as_text = options.json_as_text, .max_invalid_utf8 = options.max_invalid_utf8},
      stop));
  // A task of several may have no text; finish() sees whether none of them has.
  if (options.task.count == 1 && total_bytes(inputs) == 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: there is no text to prepare, as {}", options.inputs.front(),
                all.size() == 1 ? "the file is empty" : fmt::format("all {} files are empty", all.size()));
  }
  ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(options.tokenizer));

  ASSIGN_OR_RETURN(const SampleFormat format, sample_format(options, tokenizer));

  pipeline.threads = options.threads > 0 ? options.threads : available_cpus();
  pipeline.max_document_bytes = options.rules.max_document_bytes;
  Progress unwatched;
  Metrics unshared;
  Metrics& counted = metrics != nullptr ? *metrics : unshared;
  const double read = counted.seconds(Metric::kReadSeconds), encode = counted.seconds(Metric::kEncodeSeconds),
               write = counted.seconds(Metric::kWriteSeconds);
  TaskRun run(options, pipeline, std::move(folder), inputs, tokenizer, shard_config(options, format, *tokenizer),
              format, stop, progress != nullptr ? *progress : unwatched, counted);
  ASSIGN_OR_RETURN(PrepareReport report, run.run());
  if (options.dry_run) {
    ASSIGN_OR_RETURN(report.estimate, estimate_task(inputs, format, tokenizer, stop));
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
