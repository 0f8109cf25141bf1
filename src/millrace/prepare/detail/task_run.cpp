// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/task_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "millrace/base/log.h"
#include "millrace/formats/megatron.h"
#include "millrace/prepare/detail/estimate.h"
#include "millrace/prepare/detail/folder.h"

namespace millrace::prepare {

namespace {

// Raised when the same settings and inputs begin to give other bytes: shards of an earlier build are then not
// continued.
constexpr int kWriterVersion = 4;
constexpr int64_t kLoggedRejections = 5;
constexpr double kSureShare = 0.9;           // of the estimate: less free space than that is certainly too little
constexpr int64_t kSizeSeenBytes = 1 << 20;  // of text, before the output's size is compared with it
constexpr int64_t kCountedBytes = formats::kTextHead;  // of an input, before its share of ill-formed UTF-8 counts

std::string run_hash(const formats::PartRecord& part) {
  formats::PartRecord asked;
  asked.task = part.task;
  asked.config = part.config;
  asked.inputs = part.inputs;
  return to_hex(xxh3_128(fmt::format("{} {}", kWriterVersion, formats::serialize_part(asked))));
}

// "a.txt is new, b.txt has changed, c.txt is gone", shortened.
std::string explain_inputs(std::span<const formats::InputEntry> there, std::span<const formats::InputEntry> here) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> differences;
  std::map<std::string_view, const formats::InputEntry*> before;
  for (const formats::InputEntry& entry : there) before[entry.name] = &entry;
  for (const formats::InputEntry& entry : here) {
    const auto found = before.find(entry.name);
    if (found == before.end()) {
      differences.push_back(entry.name + " is new");
    } else {
      if (*found->second != entry) differences.push_back(entry.name + " has changed");
      before.erase(found);
    }
  }
  for (const auto& [name, entry] : before) differences.push_back(std::string(name) + " is gone");
  if (differences.empty()) return "written by another version of Millrace";
  const size_t rest = differences.size() - std::min(differences.size(), kNamed);
  differences.resize(differences.size() - rest);
  return fmt::format("{}{}", fmt::join(differences, ", "), rest > 0 ? fmt::format(", and {} more", rest) : "");
}

}  // namespace

TaskRun::TaskRun(const PrepareOptions& options, const TaskSetup& setup, const PipelineOptions& pipeline,
                 std::stop_token stop, Progress& progress, Metrics& metrics)
    : options_(options),
      pipeline_(pipeline),
      folder_(setup.folder),
      inputs_(setup.inputs),
      tokenizer_(setup.tokenizer),
      format_(setup.format),
      stop_(std::move(stop)),
      progress_(progress),
      metrics_(metrics),
      texts_(options.dedup_memory_bytes) {
  part_.task = options.task.index;
  part_.config = setup.config;
  for (const Input& input : inputs_) {
    input_begin_.push_back(part_.input_bytes);
    part_.inputs.push_back({input.name, input.size, input.identity});
    part_.input_bytes += input.size;
  }
  input_begin_.push_back(part_.input_bytes);
  run_ = run_hash(part_);
  part_name_ = formats::part_name(part_.task, part_.config.tasks);
}

Result<PrepareReport> TaskRun::run() {
  progress_.set_totals(part_.input_bytes, 0);
  progress_.set_phase("check");
  RETURN_IF_ERROR(compare_config());
  if (!options_.replace) RETURN_IF_ERROR(refuse_other_inputs());
  RETURN_IF_ERROR(keep_finished_shards());
  if (!options_.dry_run) RETURN_IF_ERROR(write_what_is_missing());
  PrepareReport report;
  report.part = std::move(part_);
  report.shards_reused = shards_reused_;
  for (const formats::ShardEntry& shard : report.part.shards) report.output_bytes += shard.size;
  return report;
}

std::string TaskRun::shard_name(size_t number) const {
  const std::string_view suffix = shard_suffix(format_.options.format);
  return options_.shards.shard_bytes == 0 ? fmt::format("{:05}{}", part_.task, suffix)
                                          : fmt::format("{:05}-{:05}{}", part_.task, number, suffix);
}

// `file_bytes` of the position's input are behind it, when that is known: of packed files and tables only the reader
// knows.
void TaskRun::move_to(const Position& position, std::optional<int64_t> file_bytes) {
  const auto input = static_cast<size_t>(position.input);
  const int64_t bytes = std::max(progress_bytes_, input_begin_[input] + file_bytes.value_or(0));
  progress_.add(bytes - progress_bytes_, position.document - at_.document);
  progress_bytes_ = bytes;
  at_ = position;
}

// Whether the folder has a configuration; it is then this one.
Result<bool> TaskRun::compare_config() {
  ASSIGN_OR_RETURN(const auto json, read_if_there(folder_, formats::kConfigName));
  if (!json) return false;
  ASSIGN_OR_RETURN(const auto there, formats::parse_shard_config(*json, folder_.child(formats::kConfigName).url));
  if (there == part_.config) return true;
  std::string difference = formats::explain_difference(there, part_.config);
  for (size_t end; (end = difference.find('\n')) != std::string::npos;) difference.replace(end, 1, "; ");
  return fail(ErrorCode::kInvalidArgument,
              "{}: this folder was begun with other settings ({}); give another folder, or these settings", folder_.url,
              difference);
}

// The first task that has something to show writes the configuration, so that one which fails before leaves nothing
// behind; a task that comes at the same moment and differs is refused before it shows anything.
Status TaskRun::settle_config() {
  ASSIGN_OR_RETURN(const bool there, compare_config());
  if (there) return {};
  WriteOptions options;
  options.condition = WriteOptions::Condition::kIfAbsent;
  const auto written = write_object(*folder_.storage, folder_.child(formats::kConfigName).key,
                                    formats::serialize_shard_config(part_.config), options);
  if (!written && written.error().code() != ErrorCode::kAlreadyExists) return tl::unexpected(written.error());
  return compare_config().map([](bool) {});
}

void TaskRun::add_shard(const FinishedShard& shard) {
  part_.shards.push_back(shard.entry);
  part_.documents += shard.entry.samples;
  part_.tokens += shard.entry.tokens;
  part_.counts += shard.origin.counts;
}

// False when the next shard is not there, or not good.
Result<bool> TaskRun::keep_finished_shard() {
  ASSIGN_OR_RETURN(const auto shard,
                   find_finished_shard(folder_, shard_name(part_.shards.size()), format_, run_, at_, stop_));
  if (!shard) return false;
  add_shard(*shard);
  rejected_ += shard->origin.counts.rejected;
  ++shards_reused_;
  const Position& end = shard->origin.end;
  // An estimate, for a packed file.
  const bool inside = end.input < static_cast<int64_t>(inputs_.size());
  move_to(end, inside ? std::min(end.offset, inputs_[static_cast<size_t>(end.input)].size) : 0);
  return true;
}

Status TaskRun::keep_finished_shards() {
  for (bool kept = true; kept && !at_end();) {
    ASSIGN_OR_RETURN(kept, keep_finished_shard());
  }
  return {};
}

// Whether the rest will fit, by an estimate from a sample in this format. An error in the sample is the
// run's to report; the text then has to fit as it is.
Status TaskRun::check_room() {
  if (!folder_.storage->capabilities().free_space || part_.input_bytes == 0) return {};
  const int64_t left = part_.input_bytes - progress_bytes_;
  const auto estimate = estimate_task(inputs_, format_, tokenizer_, stop_);
  if (!estimate) return check_space(folder_, left);
  const double share = static_cast<double>(left) / static_cast<double>(part_.input_bytes);
  const auto needed = static_cast<int64_t>(kSureShare * share * static_cast<double>(estimate->output_bytes));
  // A sample does not show how much dedup will leave out.
  return check_space(folder_, format_.options.rules.dedup ? std::min(needed, left) : needed);
}

Status TaskRun::write_what_is_missing() {
  if (!at_end()) RETURN_IF_ERROR(check_room());
  RETURN_IF_ERROR(abort_leftovers());
  RETURN_IF_ERROR(forget_other_inputs());
  progress_.set_phase("prepare");
  while (!at_end()) {
    RETURN_IF_ERROR(write_shards());
    RETURN_IF_ERROR(keep_finished_shards());
  }
  if (trouble_ != chat::MaskTrouble{}) {
    log(LogLevel::kWarning,
        "{} turns of conversations are not learned and {} are to the conversation's end, since no token stands for "
        "their "
        "first or last character (docs/chat.md)",
        trouble_.lost, trouble_.overrun);
  }
  RETURN_IF_ERROR(settle_config());
  RETURN_IF_ERROR(remove_other_shards());
  return write_if_different(folder_, part_name_, formats::serialize_part(part_));
}

// A shard of this task ("00003.tar", "00003-00012.tar" for task 3), or what lies beside one.
bool TaskRun::is_own_file(std::string_view name) const {
  const std::string prefix = fmt::format("{:05}", part_.task);
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  if (name.starts_with('-')) {
    name.remove_prefix(1);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0) return false;
    name.remove_prefix(digits);
  }
  if (name == formats::kMegatronIndexSuffix) return format_.options.format == OutputFormat::kMegatron;
  const std::string_view suffix = shard_suffix(format_.options.format);
  if (!name.starts_with(suffix)) return false;
  name.remove_prefix(suffix.size());
  return name.empty() || name == kIndexSuffix || name == kLedgerSuffix;
}

// Aborts the uploads of this task's earlier runs that were killed.
Status TaskRun::abort_leftovers() {
  if (!folder_.storage->capabilities().list_uploads) return {};
  const std::string base = folder_.child("").key;
  auto uploads = folder_.storage->list_uploads(base);
  // Some file systems can't tell the living from the dead; what is left there stays hidden.
  if (!uploads) return uploads.error().code() == ErrorCode::kUnsupported ? Status() : tl::unexpected(uploads.error());
  std::erase_if(*uploads, [&](const ObjectInfo& upload) {
    const std::string name = upload.key.substr(base.size());
    return !is_own_file(name) && name != part_name_ && name != formats::kConfigName;
  });
  return folder_.storage->abort_uploads(*uploads);
}

// The part record of a task that was finished from other inputs; nullopt when there is none.
Result<std::optional<formats::PartRecord>> TaskRun::finished_from_other_inputs() {
  ASSIGN_OR_RETURN(const auto json, read_if_there(folder_, part_name_));
  if (!json) return std::optional<formats::PartRecord>();
  auto there = formats::parse_part(*json, part_name_);
  if (!there || run_hash(*there) == run_) return std::optional<formats::PartRecord>();
  return std::optional(std::move(*there));
}

Status TaskRun::refuse_other_inputs() {
  ASSIGN_OR_RETURN(const auto there, finished_from_other_inputs());
  if (!there) return {};
  return fail(ErrorCode::kAlreadyExists,
              "{}: task {} of {} is finished there, from other inputs ({}); give another folder, or --replace to write "
              "it again from these",
              folder_.url, part_.task, part_.config.tasks, explain_inputs(there->inputs, part_.inputs));
}

// A part record of other inputs would name shards that are about to be replaced, and so would a manifest joined from
// it.
Status TaskRun::forget_other_inputs() {
  ASSIGN_OR_RETURN(const auto there, finished_from_other_inputs());
  if (!there) return {};
  const std::vector<std::string> keys = {folder_.child(formats::kManifestName).key, folder_.child(part_name_).key};
  return folder_.storage->remove(keys);
}

// Shards behind the last one: of an earlier run over more text.
Status TaskRun::remove_other_shards() {
  std::set<std::string, std::less<>> current;
  for (const formats::ShardEntry& shard : part_.shards) current.insert(shard.name);
  const std::string_view suffix = shard_suffix(format_.options.format);
  ASSIGN_OR_RETURN(const auto files, folder_files(folder_, fmt::format("{:05}", part_.task)));
  std::vector<std::string> keys;
  for (const auto& [name, size] : files) {
    const std::string shard = name.substr(0, name.find('.')) + std::string(suffix);
    if (is_own_file(name) && !current.contains(shard)) keys.push_back(folder_.child(name).key);
  }
  return folder_.storage->remove(keys);
}

// Writes shards from where the task stands to the end of the inputs, or up to a shard that is finished already.
Status TaskRun::write_shards() {
  if (format_.options.rules.dedup) RETURN_IF_ERROR(remember_kept_texts());
  Pipeline pipeline(inputs_, at_, format_, tokenizer_, pipeline_, stop_, metrics_);
  shard_begin_ = at_;
  for (;;) {
    ASSIGN_OR_RETURN(auto batch, pipeline.next());
    if (!batch) break;
    ASSIGN_OR_RETURN(const bool met_finished_shard, write_batch(*batch));
    if (met_finished_shard) return {};
    trouble_.lost += batch->trouble.lost;
    trouble_.overrun += batch->trouble.overrun;
    pipeline.recycle(std::move(*batch));
  }
  move_to(end_of_inputs());
  part_.counts.empty += std::exchange(empties_, 0);  // there is no shard that could tell it
  return shard_ ? end_shard() : Status();
}

// Reads the texts of kept shards again, so that later duplicates of them are found.
Status TaskRun::remember_kept_texts() {
  if (remembered_ == at_) return {};
  PipelineOptions options = pipeline_;
  options.hashes_only = true;
  Metrics uncounted;
  Pipeline pipeline(inputs_, remembered_, format_, tokenizer_, options, stop_, uncounted);
  for (;;) {
    ASSIGN_OR_RETURN(auto batch, pipeline.next());
    if (!batch) break;
    for (const Sample& sample : batch->samples) {
      if (sample.document < at_.document) RETURN_IF_ERROR(texts_.insert(sample.text_hash));
    }
    if (batch->slice.end().document >= at_.document) break;
    pipeline.recycle(std::move(*batch));
  }
  remembered_ = at_;
  return {};
}

Result<std::vector<bool>> TaskRun::find_duplicates(std::span<const Sample> samples) {
  std::vector<bool> duplicate(samples.size());
  if (!format_.options.rules.dedup) return duplicate;
  for (size_t i = 0; i < samples.size(); ++i) {
    ASSIGN_OR_RETURN(const bool is_new, texts_.insert(samples[i].text_hash));
    duplicate[i] = !is_new;
  }
  return duplicate;
}

Status TaskRun::open_shard() {
  if (shard_) return {};
  ASSIGN_OR_RETURN(shard_, ShardWriter::open(folder_, shard_name(part_.shards.size()), format_, metrics_));
  shard_->add_empty(std::exchange(empties_, 0));
  return {};
}

// Counts documents without text. They alone make no shard.
void TaskRun::drop_empties(int64_t count) {
  if (shard_) {
    shard_->add_empty(count);
  } else {
    empties_ += count;
  }
}

Status TaskRun::drop(const Dropped& dropped, const Slice& slice) {
  if (dropped.empties > 0) {
    drop_empties(dropped.empties);
    return {};
  }
  const Input& input = inputs_[static_cast<size_t>(slice.input)];
  RETURN_IF_ERROR(open_shard());
  RETURN_IF_ERROR(shard_->drop(dropped, input.name));
  if (!dropped.rejected) return {};
  metrics_.add(Metric::kRejected, 1);
  const formats::LeftOut& at = *dropped.rejected;
  const auto place = fmt::format("{}: line {}, offset {}: {}", slice.source, at.line, at.offset, at.reason);
  if (++rejected_ > options_.max_errors) {
    return fail(ErrorCode::kInvalidArgument, "more than {} documents had to be rejected; the last is {}",
                options_.max_errors, place);
  }
  if (rejected_ <= kLoggedRejections) log(LogLevel::kWarning, "rejected: {}", place);
  if (rejected_ == kLoggedRejections)
    log(LogLevel::kWarning, "further ones are in the ledgers only (*{})", kLedgerSuffix);
  return {};
}

// Looks at what is written so far, before more follows.
Status TaskRun::count_text(const Batch& batch) {
  if (batch.slice.input != counted_.input) counted_ = {.input = batch.slice.input};
  for (const Sample& sample : batch.samples) {
    counted_.invalid_utf8 += sample.invalid_utf8;
    seen_.tokens += sample.tokens;
  }
  seen_.documents += std::ssize(batch.samples);
  seen_.text_bytes += batch.slice.bytes();
  seen_.sample_bytes += std::ssize(batch.bytes);
  counted_.bytes += batch.slice.bytes();
  if (seen_.text_bytes >= kSizeSeenBytes && !size_reported_) {
    size_reported_ = true;
    if (const std::string advice = size_advice(format_, seen_); !advice.empty()) log(LogLevel::kWarning, "{}", advice);
  }
  // The front of each input was looked at; what follows may be another text.
  const bool ends = batch.slice.ends_chunk() && counted_.bytes >= kCountedBytes;
  if (!ends) return {};
  return formats::check_invalid_utf8(batch.slice.source, counted_.invalid_utf8, counted_.bytes,
                                     options_.text_rules.max_invalid_utf8);
}

// True when the rest of the batch is in a shard that is finished already; the task then stands behind that shard.
Result<bool> TaskRun::write_batch(const Batch& batch) {
  const Slice& slice = batch.slice;
  ASSIGN_OR_RETURN(const std::vector<bool> duplicate, find_duplicates(batch.samples));
  const std::span<const Sample> samples = batch.samples;
  std::string_view bytes = batch.bytes;
  auto dropped = batch.dropped.begin();
  // Documents dropped before `document` belong to the shard that is open there.
  const auto drop_before = [&](int64_t document) -> Status {
    for (; dropped != batch.dropped.end() && dropped->document < document; ++dropped) {
      RETURN_IF_ERROR(drop(*dropped, slice));
    }
    return {};
  };
  RETURN_IF_ERROR(count_text(batch));
  for (size_t i = 0; i < samples.size();) {
    RETURN_IF_ERROR(drop_before(samples[i].document));
    if (duplicate[i]) {
      RETURN_IF_ERROR(open_shard());
      shard_->add_duplicate();
      metrics_.add(Metric::kDuplicates, 1);
      bytes.remove_prefix(samples[i++].size);
      continue;
    }
    if (shard_ && full(shard_->sample_bytes())) {
      move_to(slice.position_of(static_cast<size_t>(samples[i].document - slice.first_document)));
      RETURN_IF_ERROR(end_shard());
      ASSIGN_OR_RETURN(const bool kept, keep_finished_shard());
      if (kept) {
        // Texts of this batch may lie behind that shard, and must not count as their own duplicates.
        texts_.clear();
        remembered_ = {};
        return true;
      }
    }
    RETURN_IF_ERROR(open_shard());
    size_t end = i, size = 0;
    do {
      size += samples[end++].size;
    } while (end < samples.size() && !duplicate[end] && !full(shard_->sample_bytes() + static_cast<int64_t>(size)));
    RETURN_IF_ERROR(shard_->append(bytes.substr(0, size), samples.subspan(i, end - i)));
    bytes.remove_prefix(size);
    i = end;
  }
  RETURN_IF_ERROR(drop_before(std::numeric_limits<int64_t>::max()));
  // No document's start, so no shard begins here: the next one begins where the next document does.
  move_to(slice.end(), slice.ends_chunk() ? std::optional(slice.chunk->file_bytes) : std::nullopt);
  remembered_ = at_;
  return false;
}

// The task stands behind the shard's last sample.
Status TaskRun::end_shard() {
  if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  RETURN_IF_ERROR(settle_config());
  ASSIGN_OR_RETURN(const FinishedShard shard, shard_->finish({.run = run_, .begin = shard_begin_, .end = at_},
                                                             part_.config.tokenizer_hash, part_.config.ids_field));
  shard_.reset();
  shard_begin_ = at_;
  add_shard(shard);
  return {};
}

}  // namespace millrace::prepare
