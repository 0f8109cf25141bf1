// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/commit/commit.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/records/failure.h"
#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

namespace {

using std::chrono::milliseconds;

// The name that the system has for this process's user, else its number.
std::string user_name() {
  std::vector<char> buffer(16 << 10);
  passwd entry{};
  passwd* found = nullptr;
  getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr ? found->pw_name : fmt::format("{}", geteuid());
}

StepWriter this_writer() {
  StepWriter writer{std::string(host_name()), user_name(), MILLRACE_VERSION};
  for (std::string* text : {&writer.host, &writer.user}) {
    if (!is_utf8(*text)) text->clear();
  }
  return writer;
}

// Waits between two looks at storage of one rank among `lookers`.
class Backoff {
 public:
  Backoff(const StepCommit& commit, int64_t lookers)
      : commit_(commit), pauses_(look_pauses(lookers)), delay_(pauses_.first) {}

  // Errors: cancelled. False: the deadline had passed.
  Result<bool> wait() {
    if (commit_.alive) commit_.alive();
    if (Clock::now() >= commit_.deadline) return false;
    const auto pause =
        std::chrono::duration_cast<milliseconds>(delay_ * std::uniform_real_distribution(0.5, 1.5)(random_));
    if (!sleep_until(std::min(commit_.deadline, Clock::now() + pause), commit_.stop))
      return fail(ErrorCode::kCancelled, "step {}: stopped", commit_.step);
    delay_ = std::min(delay_ * 2, pauses_.longest);
    return true;
  }

 private:
  const StepCommit& commit_;
  const LookPauses pauses_;
  milliseconds delay_;
  std::minstd_rand random_{std::random_device{}()};
};

// The part records of a step as they arrive, and the table of tensors they add up to.
class PartCollector {
 public:
  PartCollector(const StepCommit& commit, WrittenRecord own)
      : commit_(commit),
        shares_(own.part.shares),
        own_(std::move(own)),
        directory_(commit.directory()),
        places_(RankPlaces::of_new(commit.world_size)),
        parts_(static_cast<size_t>(commit.world_size)) {
    for (int64_t rank = 0; rank < commit.world_size; ++rank) missing_.push_back(rank);
  }

  bool complete() const { return missing_.empty(); }
  tl::unexpected<Error> too_late() const {
    return fail(ErrorCode::kTimeout,
                "commit step {}: no part record of rank {} (of {}) in time, nor a cause: each has ended, hangs, or is "
                "still writing",
                commit_.step, fmt::join(missing_, ", "), commit_.world_size);
  }

  // Reads the part records that have arrived since the last call.
  Status look() {
    ASSIGN_OR_RETURN(const auto objects, list_rank_files(directory_, places_, missing_));
    std::unordered_map<std::string_view, int64_t> sizes;
    for (const ObjectInfo& object : objects) sizes.emplace(object.key, object.size);
    std::vector<int64_t> still_missing, arrived;
    for (const int64_t rank : missing_)
      (sizes.contains(places_.record(rank)) ? arrived : still_missing).push_back(rank);
    for (size_t begin = 0; begin < arrived.size(); begin += kRecordsInMemory) {
      const std::span<const int64_t> ranks =
          std::span(arrived).subspan(begin, std::min(kRecordsInMemory, arrived.size() - begin));
      std::vector<WrittenRecord> records(ranks.size());
      const auto read = [&](int64_t i) -> Status {
        if (commit_.alive) commit_.alive();
        ASSIGN_OR_RETURN(records[static_cast<size_t>(i)], record_of(ranks[static_cast<size_t>(i)]));
        return {};
      };
      RETURN_IF_ERROR(parallel_try(std::ssize(ranks), kReadsAtOnce, "mr-ckpt-commit", read));
      for (size_t i = 0; i < ranks.size(); ++i) {
        const auto size = sizes.find(places_.file(ranks[i]));
        RETURN_IF_ERROR(
            take(ranks[i], std::move(records[i]), size == sizes.end() ? std::nullopt : std::optional(size->second)));
      }
    }
    missing_ = std::move(still_missing);
    for (const int64_t rank : missing_) {
      if (!sizes.contains(places_.failure(rank))) continue;
      ASSIGN_OR_RETURN(const auto failure, read_failure(directory_, places_, rank));
      if (failure) return tl::unexpected(Error(*failure).add_context(fmt::format("commit step {}", commit_.step)));
    }
    return {};
  }

  // The manifest of all parts. Errors: corruption (tiling).
  Result<Manifest> join(std::string state, StepMetrics metrics, std::optional<Lineage> line) {
    Manifest manifest{.step = commit_.step, .attempt = commit_.attempt};
    manifest.created = std::chrono::time_point_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now());
    manifest.parts = std::move(parts_);
    manifest.state = std::move(state);
    manifest.metrics = std::move(metrics);
    manifest.line = std::move(line);
    manifest.writer = this_writer();
    manifest.in_folders = places_.in_folders;
    manifest.shares = shares_;
    manifest.bases = bases_of(sources_);
    std::sort(tensors_.begin(), tensors_.end(),
              [](const ManifestTensor& a, const ManifestTensor& b) { return a.tensor.name < b.tensor.name; });
    for (ManifestTensor& tensor : tensors_) {
      std::sort(tensor.boxes.begin(), tensor.boxes.end(),
                [](const StoredBox& a, const StoredBox& b) { return a.part < b.part; });
      RETURN_IF_ERROR(with_context(check_tiling(tensor), fmt::format("commit step {}", commit_.step)));
    }
    manifest.tensors = std::move(tensors_);
    return manifest;
  }

 private:
  // With thousands of ranks, each record is a round trip to the storage.
  static constexpr size_t kRecordsInMemory = 64;
  static constexpr int kReadsAtOnce = 32;

  // The record of a rank: this rank's own, or that of another, read. Thread-safe for different ranks.
  Result<WrittenRecord> record_of(int64_t rank) {
    if (rank == own_.part.rank) return std::move(own_);
    const Location at = directory_.child(places_.record(rank));
    WrittenRecord record;
    ASSIGN_OR_RETURN(record.text, read_object(*at.storage, at.key, kMaxRecordBytes));
    ASSIGN_OR_RETURN(record.part, parse_part(record.text, at.url));
    const PartRecord& part = record.part;
    if (part.step != commit_.step || part.attempt != commit_.attempt || part.rank != rank ||
        part.world_size != commit_.world_size || part.in_folders != places_.in_folders)
      return fail(ErrorCode::kCorruption, "{}: it is of step {}, attempt {}, rank {} of {}", at.url, part.step,
                  part.attempt, part.rank, part.world_size);
    if (part.shares != shares_)
      return fail(ErrorCode::kInvalidArgument,
                  "{}: only one of rank {} and rank 0 refers to tensors that did not change: give all ranks the same "
                  "option",
                  at.url, rank);
    return record;
  }

  Status take(int64_t rank, WrittenRecord record, std::optional<int64_t> file_bytes) {
    const Location at = directory_.child(places_.record(rank));
    PartRecord& part = record.part;
    if (!file_bytes) {  // the listing passed the file's place before it was there
      const Location file = directory_.child(places_.file(rank));
      ASSIGN_OR_RETURN(const ObjectInfo info, file.storage->stat(file.key));
      file_bytes = info.size;
    }
    if (*file_bytes != part.file_bytes)
      return fail(ErrorCode::kCorruption, "{}: its file has {} bytes, not {}", at.url, *file_bytes, part.file_bytes);
    const std::string& text = record.text;
    parts_[static_cast<size_t>(rank)] = {static_cast<int64_t>(text.size()), xxh3_128(text), part.file_bytes,
                                         part.referred_bytes()};
    sources_.insert(sources_.end(), part.sources.begin(), part.sources.end());
    for (PartTensor& tensor : part.tensors) RETURN_IF_ERROR(add(rank, std::move(tensor), at.url));
    return {};
  }

  Status add(int64_t rank, PartTensor tensor, const std::string& source) {
    const auto [entry, fresh] = by_name_.try_emplace(tensor.name, tensors_.size());
    if (fresh) {
      const auto bytes = formats::tensor_bytes(tensor.dtype, tensor.shape);
      tensors_.push_back({{std::move(tensor.name), tensor.dtype, std::move(tensor.shape), bytes.value_or(0)}, {}});
      tensors_.back().boxes.push_back({rank, std::move(tensor.box)});
      return {};
    }
    auto& [known, boxes] = tensors_[entry->second];
    if (tensor.dtype != known.dtype || tensor.shape != known.shape)
      return fail(ErrorCode::kCorruption, "{}: tensor '{}' is {} [{}], other ranks have {} [{}]", source, known.name,
                  formats::dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), formats::dtype_name(known.dtype),
                  fmt::join(known.shape, ", "));
    boxes.push_back({rank, std::move(tensor.box)});
    return {};
  }

  const StepCommit& commit_;
  const bool shares_;  // with a job's ranks all alike
  WrittenRecord own_;
  const Location directory_;
  const RankPlaces places_;
  std::vector<int64_t> missing_;
  std::vector<ManifestPart> parts_;
  std::vector<PartSource> sources_;
  std::vector<ManifestTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

// The attempt that holds a step, and what to ask for to replace it.
struct Holder {
  std::string attempt;  // empty: the manifest cannot be read
  std::string version;
};
Result<std::optional<Holder>> find_holder(const Location& root, int64_t step) {
  const Location at = step_location(root, step).child(kManifestName);
  auto reader = at.storage->open_read(at.key);
  if (!reader) {
    if (reader.error().code() == ErrorCode::kNotFound) return std::nullopt;
    return tl::unexpected<Error>(std::move(reader).error());
  }
  ASSIGN_OR_RETURN(const std::string text, read_all(**reader, kMaxRecordBytes));
  auto manifest = parse_manifest(text, (*reader)->name());
  if (!manifest && manifest.error().code() != ErrorCode::kCorruption)
    return tl::unexpected<Error>(std::move(manifest).error());
  return Holder{manifest ? std::move(manifest->attempt) : "", std::string((*reader)->version())};
}

Status check_older(const std::optional<Holder>& holder, int64_t step, const std::string& attempt) {
  if (!holder || holder->attempt.empty() || *restart_of(holder->attempt) < *restart_of(attempt)) return {};
  return fail(ErrorCode::kAlreadyExists, "step {} is committed by attempt {}, which is not older than {}", step,
              holder->attempt, attempt);
}

// Creates the manifest, or replaces that of an older attempt; looks again whenever another was faster.
Status put_manifest(const StepCommit& commit, const std::string& text) {
  const Location at = step_location(commit.root, commit.step).child(kManifestName);
  for (;;) {
    ASSIGN_OR_RETURN(const auto holder, find_holder(commit.root, commit.step));
    RETURN_IF_ERROR(check_older(holder, commit.step, commit.attempt));
    WriteOptions options{.condition = WriteOptions::Condition::kIfAbsent};
    if (holder) {
      log(LogLevel::kInfo, "checkpoint: {} of attempt '{}' is replaced", at.url, holder->attempt);
      options.condition = WriteOptions::Condition::kIfVersion;
      options.version = holder->version;
    }
    const auto written = write_object(*at.storage, at.key, text, options);
    if (written) return {};
    if (written.error().code() != ErrorCode::kAlreadyExists) return tl::unexpected<Error>(written.error());
  }
}

}  // namespace

LookPauses look_pauses(int64_t lookers) {
  return {.first = milliseconds(std::max<int64_t>(5, lookers / 10)),
          .longest = milliseconds(std::max<int64_t>(200, lookers))};
}

Status check_step_open(const Location& root, int64_t step, const std::string& attempt) {
  ASSIGN_OR_RETURN(const auto holder, find_holder(root, step));
  return check_older(holder, step, attempt);
}

Status commit_step(const StepCommit& commit, WrittenRecord own, std::string state, StepMetrics metrics,
                   std::optional<Lineage> line) {
  PartCollector collector(commit, std::move(own));
  Backoff backoff(commit, 1);
  for (;;) {
    RETURN_IF_ERROR(collector.look());
    if (collector.complete()) break;
    ASSIGN_OR_RETURN(const bool waited, backoff.wait());
    if (!waited) return collector.too_late();
  }
  ASSIGN_OR_RETURN(const Manifest manifest, collector.join(std::move(state), std::move(metrics), std::move(line)));
  if (commit.check_bases && !manifest.bases.empty()) RETURN_IF_ERROR(commit.check_bases(manifest.bases));
  if (commit.root.storage->capabilities().durable && commit.world_size > 1) {
    // A record is seen as soon as it is renamed; that its rank's sync of the directory has ended is not known here.
    const Location directory = commit.directory();
    std::vector<std::string> records;
    for (int64_t rank = 0; rank < commit.world_size; ++rank)
      records.push_back(directory.child(RankPlaces::of_new(commit.world_size).record(rank)).key);
    RETURN_IF_ERROR(commit.root.storage->make_durable(records));
  }
  const std::string text = serialize(manifest);
  if (std::ssize(text) > kMaxRecordBytes)
    return fail(ErrorCode::kUnsupported, "commit step {}: the manifest would have {} bytes, readers take {}",
                commit.step, text.size(), kMaxRecordBytes);
  return put_manifest(commit, text);
}

Status await_commit(const StepCommit& commit) {
  const std::vector<std::string> manifest{step_location(commit.root, commit.step).child(kManifestName).key};
  Backoff backoff(commit, 2 * commit.world_size);  // each asks twice
  for (;;) {
    ASSIGN_OR_RETURN(const auto holder, find_holder(commit.root, commit.step));
    if (holder && holder->attempt == commit.attempt) break;
    RETURN_IF_ERROR(check_older(holder, commit.step, commit.attempt));
    ASSIGN_OR_RETURN(const auto failure, read_failure(commit.directory(), RankPlaces::of_new(commit.world_size), 0));
    if (failure) return tl::unexpected(Error(*failure).add_context(fmt::format("step {}", commit.step)));
    ASSIGN_OR_RETURN(const bool waited, backoff.wait());
    if (!waited) return fail(ErrorCode::kTimeout, "step {}: rank 0 has not committed it in time", commit.step);
  }
  if (!commit.root.storage->capabilities().durable) return {};
  return commit.root.storage->make_durable(manifest);
}

Result<bool> adopt_manifest(const StepCommit& commit, const Location& from) {
  ASSIGN_OR_RETURN(const StoredManifest stored, read_manifest(from, commit.step));
  if (stored.manifest.attempt != commit.attempt)
    return fail(ErrorCode::kAlreadyExists, "step {} is committed by attempt {} in {}", commit.step,
                stored.manifest.attempt, from.url);
  ASSIGN_OR_RETURN(const auto holder, find_holder(commit.root, commit.step));
  if (holder && holder->attempt == commit.attempt) return false;
  const Status put = put_manifest(commit, serialize(stored.manifest));
  if (put) return true;
  if (put.error().code() != ErrorCode::kAlreadyExists) return tl::unexpected<Error>(put.error());
  ASSIGN_OR_RETURN(const auto winner, find_holder(commit.root, commit.step));
  if (winner && winner->attempt == commit.attempt) return false;
  return tl::unexpected<Error>(put.error());
}

}  // namespace millrace::checkpoint
