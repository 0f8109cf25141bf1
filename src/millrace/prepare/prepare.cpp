// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/prepare.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>

#include "millrace/base/log.h"
#include "millrace/prepare/detail/folder.h"
#include "millrace/prepare/detail/pipeline.h"
#include "millrace/prepare/detail/prepare_task.h"
#include "millrace/prepare/detail/shard.h"

namespace millrace::prepare {

namespace {

// Raised when the same settings and inputs begin to give other bytes: shards of an earlier build are then not
// continued.
constexpr int kWriterVersion = 1;
constexpr int64_t kMaxTokenizerBytes = 1 << 30;
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
  if (options.task.index < 0 || options.task.index >= options.task.count) {
    return fail(ErrorCode::kInvalidArgument, "task {}/{}: there is no such task", options.task.index,
                options.task.count);
  }
  if (options.ids_format != "npy" && options.ids_format != "json") {
    return fail(ErrorCode::kInvalidArgument, "ids format \"{}\": expected npy or json", options.ids_format);
  }
  if (options.shard_bytes < 0 || options.threads < 0) {
    return fail(ErrorCode::kInvalidArgument, "shard bytes ({}) and threads ({}) cannot be negative",
                options.shard_bytes, options.threads);
  }
  if (options.max_document_bytes < 1 || options.max_document_bytes > kMaxDocumentBytes) {
    return fail(ErrorCode::kInvalidArgument, "max document bytes is {}: expected 1 to {}", options.max_document_bytes,
                kMaxDocumentBytes);
  }
  return {};
}

Result<std::shared_ptr<const tokenizer::Tokenizer>> load_tokenizer(const std::string& url) {
  ASSIGN_OR_RETURN(const Location at, with_context(open_url(url), "tokenizer"));
  ASSIGN_OR_RETURN(const std::string json,
                   with_context(read_object(*at.storage, at.key, kMaxTokenizerBytes), "tokenizer"));
  return tokenizer::Tokenizer::from_json(json, url);
}

formats::ShardConfig shard_config(const PrepareOptions& options, Hash128 tokenizer_hash) {
  formats::ShardConfig config;
  config.tasks = options.task.count;
  config.tokenizer_hash = tokenizer_hash;
  config.ids_field = "token_ids." + options.ids_format;
  config.text = options.text;
  config.documents = formats::document_mode_name(options.documents);
  if (options.documents == formats::DocumentMode::kJsonl) config.text_field = options.text_field;
  config.add_special_tokens = options.add_special_tokens;
  config.shard_bytes = options.shard_bytes;
  return config;
}

std::string run_hash(const formats::PartRecord& part) {
  formats::PartRecord asked;
  asked.task = part.task;
  asked.config = part.config;
  asked.inputs = part.inputs;
  return to_hex(xxh3_128(fmt::format("{} {}", kWriterVersion, formats::serialize_part(asked))));
}

// One task from its inputs to its part record. The shards in the folder are its journal: shard k is good when its index
// says that it begins where shard k - 1 ended and its bytes are what the index says; what is not good is written again.
class TaskRun {
 public:
  TaskRun(const PrepareOptions& options, const PipelineOptions& pipeline, Location folder, std::vector<Input> inputs,
          std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::stop_token stop, Progress& progress,
          Metrics& metrics)
      : options_(options),
        pipeline_(pipeline),
        folder_(std::move(folder)),
        inputs_(std::move(inputs)),
        tokenizer_(std::move(tokenizer)),
        stop_(std::move(stop)),
        progress_(progress),
        metrics_(metrics) {
    part_.task = options.task.index;
    part_.config = shard_config(options, tokenizer_->hash());
    for (const Input& input : inputs_) {
      input_begin_.push_back(part_.input_bytes);
      part_.inputs.push_back({input.location.url, input.size, input.version});
      part_.input_bytes += input.size;
    }
    input_begin_.push_back(part_.input_bytes);
    run_ = run_hash(part_);
    part_name_ = formats::part_name(part_.task, part_.config.tasks);
  }

  Result<PrepareReport> run() {
    progress_.set_totals(part_.input_bytes, 0);
    progress_.set_phase("check");
    RETURN_IF_ERROR(compare_config());
    RETURN_IF_ERROR(keep_finished_shards());
    if (!options_.dry_run) RETURN_IF_ERROR(write_what_is_missing());
    PrepareReport report;
    report.part = std::move(part_);
    report.shards_reused = shards_reused_;
    for (const formats::ShardEntry& shard : report.part.shards) report.output_bytes += shard.size;
    return report;
  }

 private:
  bool at_end() const { return at_.input == static_cast<int64_t>(inputs_.size()); }
  Position end_of_inputs() const { return {.input = static_cast<int64_t>(inputs_.size()), .document = at_.document}; }

  std::string shard_name(size_t number) const {
    return options_.shard_bytes == 0 ? fmt::format("{:05}.tar", part_.task)
                                     : fmt::format("{:05}-{:05}.tar", part_.task, number);
  }

  // Input bytes before `position`.
  int64_t bytes_before(const Position& position) const {
    return input_begin_[static_cast<size_t>(position.input)] + position.offset;
  }

  void move_to(const Position& position) {
    progress_.add(bytes_before(position) - bytes_before(at_), position.document - at_.document);
    at_ = position;
  }

  // Whether the folder has a configuration; it is then this one.
  Result<bool> compare_config() {
    ASSIGN_OR_RETURN(const auto json, read_if_there(folder_, formats::kConfigName));
    if (!json) return false;
    ASSIGN_OR_RETURN(const auto there, formats::parse_shard_config(*json, folder_.child(formats::kConfigName).url));
    if (there == part_.config) return true;
    std::string difference = formats::explain_difference(there, part_.config);
    for (size_t end; (end = difference.find('\n')) != std::string::npos;) difference.replace(end, 1, "; ");
    return fail(ErrorCode::kInvalidArgument,
                "{}: this folder was begun with other settings ({}); give another folder, or these settings",
                folder_.url, difference);
  }

  // The first task writes the configuration; one that comes at the same moment and differs is refused.
  Status settle_config() {
    ASSIGN_OR_RETURN(const bool there, compare_config());
    if (there) return {};
    WriteOptions options;
    options.condition = WriteOptions::Condition::kIfAbsent;
    const auto written = write_object(*folder_.storage, folder_.child(formats::kConfigName).key,
                                      formats::serialize_shard_config(part_.config), options);
    if (!written && written.error().code() != ErrorCode::kAlreadyExists) return tl::unexpected(written.error());
    return compare_config().map([](bool) {});
  }

  void add_shard(const FinishedShard& shard) {
    part_.shards.push_back(shard.entry);
    part_.documents += shard.entry.samples;
    part_.tokens += shard.entry.tokens;
    part_.invalid_utf8 += shard.origin.invalid_utf8;
  }

  // Moves behind the next shard when an earlier run finished it.
  Result<bool> keep_finished_shard() {
    ASSIGN_OR_RETURN(const auto shard, find_finished_shard(folder_, shard_name(part_.shards.size()), run_, at_, stop_));
    if (!shard) return false;
    add_shard(*shard);
    ++shards_reused_;
    move_to(shard->origin.end);
    return true;
  }

  Status keep_finished_shards() {
    for (bool kept = true; kept && !at_end();) {
      ASSIGN_OR_RETURN(kept, keep_finished_shard());
    }
    return {};
  }

  Status write_what_is_missing() {
    if (!at_end()) RETURN_IF_ERROR(check_space(folder_, part_.input_bytes - bytes_before(at_)));
    RETURN_IF_ERROR(settle_config());
    RETURN_IF_ERROR(abort_leftovers());
    RETURN_IF_ERROR(forget_other_inputs());
    progress_.set_phase("prepare");
    while (!at_end()) {
      RETURN_IF_ERROR(write_shards());
      RETURN_IF_ERROR(keep_finished_shards());
    }
    RETURN_IF_ERROR(remove_other_shards());
    return write_if_different(folder_, part_name_, formats::serialize_part(part_));
  }

  // "00003.tar", "00003-00012.tar" and their indexes, for task 3.
  bool is_own_shard(std::string_view name) const {
    if (name.ends_with(kIndexSuffix)) name.remove_suffix(kIndexSuffix.size());
    const std::string prefix = fmt::format("{:05}", part_.task);
    if (!name.starts_with(prefix) || !name.ends_with(".tar")) return false;
    name = name.substr(prefix.size(), name.size() - prefix.size() - 4);
    return name.empty() || (name.front() == '-' && name.size() > 1 &&
                            name.find_first_not_of("0123456789", 1) == std::string_view::npos);
  }

  // What this task was writing when it was killed.
  Status abort_leftovers() {
    if (!folder_.storage->capabilities().list_uploads) return {};
    const std::string base = folder_.child("").key;
    auto uploads = folder_.storage->list_uploads(base);
    // Some file systems can't tell the living from the dead; what is left there stays hidden.
    if (!uploads) return uploads.error().code() == ErrorCode::kUnsupported ? Status() : tl::unexpected(uploads.error());
    std::erase_if(*uploads, [&](const ObjectInfo& upload) {
      const std::string name = upload.key.substr(base.size());
      return !is_own_shard(name) && name != part_name_ && name != formats::kConfigName;
    });
    return folder_.storage->abort_uploads(*uploads);
  }

  // A part record of other inputs would name shards that are about to be replaced, and so would a manifest joined from
  // it.
  Status forget_other_inputs() {
    ASSIGN_OR_RETURN(const auto json, read_if_there(folder_, part_name_));
    if (!json) return {};
    const auto there = formats::parse_part(*json, part_name_);
    if (!there || run_hash(*there) == run_) return {};
    log(LogLevel::kWarning, "{}: the inputs of task {} changed since it was done; it is done again from the start",
        folder_.url, part_.task);
    const std::vector<std::string> keys = {folder_.child(formats::kManifestName).key, folder_.child(part_name_).key};
    return folder_.storage->remove(keys);
  }

  // Shards behind the last one: of an earlier run over more text.
  Status remove_other_shards() {
    std::set<std::string> current;
    for (const formats::ShardEntry& shard : part_.shards) {
      current.insert(shard.name);
      current.insert(shard.name + std::string(kIndexSuffix));
    }
    ASSIGN_OR_RETURN(const auto files, folder_files(folder_, fmt::format("{:05}", part_.task)));
    std::vector<std::string> keys;
    for (const auto& [name, size] : files) {
      if (is_own_shard(name) && !current.contains(name)) keys.push_back(folder_.child(name).key);
    }
    return folder_.storage->remove(keys);
  }

  // Writes shards from where the task stands to the end of the inputs, or up to a shard that is finished already.
  Status write_shards() {
    SampleFormat format{part_.task,    options_.documents,          options_.text_field, part_.config.ids_field,
                        options_.text, options_.add_special_tokens, options_.strict_utf8};
    Pipeline pipeline(inputs_, at_, format, tokenizer_, pipeline_, stop_, metrics_);
    shard_begin_ = at_;
    for (;;) {
      ASSIGN_OR_RETURN(auto batch, pipeline.next());
      if (!batch) break;
      ASSIGN_OR_RETURN(const bool met_finished_shard, write_batch(*batch));
      if (met_finished_shard) return {};
      pipeline.recycle(std::move(*batch));
    }
    move_to(end_of_inputs());
    return shard_ ? end_shard() : Status();
  }

  // True when the rest of the batch is in a shard that is finished already; the task then stands behind that shard.
  Result<bool> write_batch(const Batch& batch) {
    std::string_view tar = batch.tar;
    for (size_t i = 0; i < batch.samples.size();) {
      if (shard_ && full(shard_->size())) {
        move_to(batch.slice.position_of(i));
        RETURN_IF_ERROR(end_shard());
        ASSIGN_OR_RETURN(const bool kept, keep_finished_shard());
        if (kept) return true;
      }
      if (!shard_) {
        ASSIGN_OR_RETURN(shard_, ShardWriter::open(folder_, shard_name(part_.shards.size()), metrics_));
      }
      size_t end = i;
      int64_t bytes = 0;
      do {
        bytes += static_cast<int64_t>(batch.samples[end++].size);
      } while (end < batch.samples.size() && !full(shard_->size() + bytes));
      RETURN_IF_ERROR(
          shard_->append(tar.substr(0, static_cast<size_t>(bytes)), std::span(batch.samples).subspan(i, end - i)));
      tar.remove_prefix(static_cast<size_t>(bytes));
      i = end;
    }
    // No document's start, so no shard begins here: the next one begins where the next document does.
    move_to(batch.slice.end());
    return false;
  }

  bool full(int64_t bytes) const { return options_.shard_bytes > 0 && bytes >= options_.shard_bytes; }

  // The task stands behind the shard's last sample.
  Status end_shard() {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    ASSIGN_OR_RETURN(const FinishedShard shard,
                     shard_->finish({run_, shard_begin_, at_, 0}, part_.config.tokenizer_hash, part_.config.ids_field));
    shard_.reset();
    shard_begin_ = at_;
    add_shard(shard);
    return {};
  }

  const PrepareOptions& options_;
  const PipelineOptions pipeline_;
  const Location folder_;
  const std::vector<Input> inputs_;
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  const std::stop_token stop_;
  Progress& progress_;
  Metrics& metrics_;

  std::vector<int64_t> input_begin_;  // of the inputs laid end to end, and their end
  std::string run_, part_name_;
  formats::PartRecord part_;
  int64_t shards_reused_ = 0;
  Position at_;           // everything before it is in a shard, finished or being written
  Position shard_begin_;  // of the shard being written
  std::unique_ptr<ShardWriter> shard_;
};

}  // namespace

Result<PrepareReport> prepare_task(const PrepareOptions& options, PipelineOptions pipeline, std::stop_token stop,
                                   Progress* progress, Metrics* metrics) {
  const auto start = Clock::now();
  const double cpu_start = cpu_seconds_used();
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(Location folder, open_url(options.output));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, expand_inputs(options.inputs));
  std::vector<std::string> own;
  for (auto i = static_cast<size_t>(options.task.index); i < all.size(); i += static_cast<size_t>(options.task.count)) {
    own.push_back(all[i]);
  }
  ASSIGN_OR_RETURN(std::vector<Input> inputs, pin_inputs(own));
  ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(options.tokenizer));

  pipeline.threads = options.threads > 0 ? options.threads : available_cpus();
  pipeline.max_document_bytes = options.max_document_bytes;
  Progress unwatched;
  Metrics uncounted;
  TaskRun run(options, pipeline, std::move(folder), std::move(inputs), std::move(tokenizer), std::move(stop),
              progress != nullptr ? *progress : unwatched, metrics != nullptr ? *metrics : uncounted);
  ASSIGN_OR_RETURN(PrepareReport report, run.run());
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.cpu_seconds = cpu_seconds_used() - cpu_start;
  return report;
}

Result<PrepareReport> prepare(const PrepareOptions& options, std::stop_token stop, Progress* progress,
                              Metrics* metrics) {
  return prepare_task(options, {}, std::move(stop), progress, metrics);
}

}  // namespace millrace::prepare
