// SPDX-License-Identifier: Apache-2.0
// Copies of committed steps between folders of checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/commit/retention.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/checkpoint/tier/part_copy.h"

namespace millrace::checkpoint {

namespace {

// At the parts of other ranks. A choice: nothing beside the time that a part takes to be copied.
constexpr std::chrono::milliseconds kBetweenLooks{100};

// One of the folders that have the step, and its manifest.
struct Source {
  const Location* root = nullptr;
  Manifest manifest;
};

// The newest attempt that any of `from` has committed. Errors: not_found, damage, those of storage.
Result<Source> newest_source(std::span<const Location> from, int64_t step) {
  std::optional<Source> newest;
  std::optional<Error> first;
  for (const Location& root : from) {
    auto stored = read_manifest(root, step);
    if (!stored) {
      if (!first || first->code() == ErrorCode::kNotFound) first = std::move(stored).error();
      continue;
    }
    if (!newest || *restart_of(stored->manifest.attempt) > *restart_of(newest->manifest.attempt))
      newest = Source{&root, std::move(stored->manifest)};
  }
  if (newest) return std::move(*newest);
  if (first->code() != ErrorCode::kNotFound) return tl::unexpected<Error>(std::move(*first));
  return fail(ErrorCode::kNotFound, "{}: no committed step {}", from.back().url, step);
}

// Copies one step.
class StepCopier {
 public:
  StepCopier(std::span<const Location> from, const Location& to, int64_t step, const StepCopyOptions& options,
             std::stop_token stop)
      : from_(from),
        to_(to),
        step_(step),
        options_(options),
        stop_(std::move(stop)),
        deadline_(Clock::now() + options.timeout) {}

  Result<StepCopy> run() {
    ASSIGN_OR_RETURN(source_, find_source());
    const Manifest& manifest = source_.manifest;
    RETURN_IF_ERROR(copy_bases());
    ASSIGN_OR_RETURN(const bool is_there, look_at_target());
    StepCopy result{.step = step_, .parts = manifest.world_size()};
    int64_t bytes = 0;
    for (int64_t rank = 0; rank < manifest.world_size(); ++rank)
      bytes += is_mine(rank) ? manifest.parts[static_cast<size_t>(rank)].file_bytes : 0;
    if (!is_there)
      RETURN_IF_ERROR(
          check_space(*to_.storage, prefix_below(to_), bytes, fmt::format("step {} in {}", step_, to_.url)));
    for (int64_t rank = 0; rank < manifest.world_size(); ++rank) {
      if (is_mine(rank)) RETURN_IF_ERROR(bring(rank, result));
    }
    if (!is_mine(0)) return result;
    RETURN_IF_ERROR(wait_for_parts());
    RETURN_IF_ERROR(commit());
    return result;
  }

 private:
  bool is_mine(int64_t rank) const { return !options_.rank || *options_.rank == rank; }
  Location directory(const Location& root) const { return step_location(root, step_).child(source_.manifest.attempt); }

  // The steps that this one refers to; each is older than it. Retention of the target waits for this step.
  Status copy_bases() {
    for (const Ancestor& base : source_.manifest.bases) {
      ASSIGN_OR_RETURN(const Source found, newest_source(from_, base.step));
      if (found.manifest.attempt != base.attempt)
        return fail(ErrorCode::kUnsupported,
                    "step {} refers to step {} of attempt {}, which attempt {} has replaced since: export it instead",
                    step_, base.step, base.attempt, found.manifest.attempt);
      const StepCopyOptions options{.rank = options_.rank, .timeout = options_.timeout, .progress = options_.progress};
      RETURN_IF_ERROR(with_context(copy_step(from_, to_, base.step, options, stop_),
                                   fmt::format("step {} refers to step {}", step_, base.step)));
    }
    return {};
  }

  // Waits for the manifest of the attempt that the caller names.
  Result<Source> find_source() {
    for (;;) {
      auto source = newest_source(from_, step_);
      if (options_.attempt.empty() || (source && source->manifest.attempt == options_.attempt)) return source;
      if (!source && source.error().code() != ErrorCode::kNotFound) return source;
      if (source && *restart_of(source->manifest.attempt) > *restart_of(options_.attempt))
        return fail(ErrorCode::kAlreadyExists, "step {}: attempt {} has replaced {}", step_, source->manifest.attempt,
                    options_.attempt);
      RETURN_IF_ERROR(wait_a_while("attempt " + options_.attempt + " has not committed it"));
    }
  }

  // Whether the step is committed there by the same attempt. Errors: already_exists (by a newer one).
  Result<bool> look_at_target() {
    const auto there = read_manifest(to_, step_);
    if (!there) {
      const Error& error = there.error();
      if (error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorruption) return false;
      return tl::unexpected<Error>(error);
    }
    const std::string& attempt = there->manifest.attempt;
    if (attempt == source_.manifest.attempt) return true;
    if (*restart_of(attempt) < *restart_of(source_.manifest.attempt)) return false;
    return fail(ErrorCode::kAlreadyExists, "{}: step {} is there by attempt {}, which is not older than {}", to_.url,
                step_, attempt, source_.manifest.attempt);
  }

  // The record of a rank's part, as the manifest names it, and its text.
  Result<WrittenRecord> record_of(int64_t rank) const {
    const ManifestPart& expected = source_.manifest.parts[static_cast<size_t>(rank)];
    std::optional<Error> first;
    for (const Location& root : from_) {
      const Location at = directory(root).child(source_.manifest.places().record(rank));
      auto text = read_object(*at.storage, at.key, kMaxRecordBytes);
      if (text && std::ssize(*text) == expected.bytes && xxh3_128(*text) == expected.hash) {
        ASSIGN_OR_RETURN(PartRecord part, parse_part(*text, at.url));
        return WrittenRecord{std::move(part), std::move(*text)};
      }
      if (first) continue;
      first = text
                  ? Error(ErrorCode::kCorruption, fmt::format("{}: it does not match its hash in the manifest", at.url))
                  : std::move(text).error();
    }
    return tl::unexpected<Error>(std::move(*first));
  }

  Status bring(int64_t rank, StepCopy& result) {
    ASSIGN_OR_RETURN(const WrittenRecord record, record_of(rank));
    std::vector<Location> sources;
    for (const Location& root : from_) sources.push_back(directory(root));
    const Location to = directory(to_);
    if (!is_whole_part(to, record, stop_)) {
      RETURN_IF_ERROR(bring_part(sources, to, record, stop_));
      ++result.copied;
      result.bytes += record.part.file_bytes;
    }
    if (options_.progress != nullptr) options_.progress->add(record.part.file_bytes, 1);
    return {};
  }

  Status wait_for_parts() {
    const int64_t world_size = source_.manifest.world_size();
    const RankPlaces places = source_.manifest.places();
    const Location directory = this->directory(to_);
    std::vector<int64_t> ranks(static_cast<size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), int64_t{0});
    std::set<std::string> names;
    std::vector<std::string> records;
    for (const int64_t rank : ranks) {
      names.insert(places.record(rank));
      records.push_back(directory.child(places.record(rank)).key);
    }
    while (options_.rank) {  // else all are here
      ASSIGN_OR_RETURN(const auto objects, list_rank_files(directory, places, ranks));
      const auto parts =
          std::ranges::count_if(objects, [&](const ObjectInfo& object) { return names.contains(object.key); });
      if (parts >= world_size) break;
      RETURN_IF_ERROR(wait_a_while(fmt::format("{} of {} parts are in {}", parts, world_size, to_.url)));
    }
    if (!to_.storage->capabilities().durable) return {};
    return to_.storage->make_durable(records);
  }

  Status commit() {
    const Manifest& manifest = source_.manifest;
    const StepCommit commit{to_, step_, manifest.attempt, manifest.world_size(), deadline_, stop_};
    RETURN_IF_ERROR(adopt_manifest(commit, *source_.root));
    const Location latest = to_.child(kLatestName);
    if (auto written = write_object(*latest.storage, latest.key, step_name(step_) + "\n", {}, Durability::kVisible);
        !written)
      log(LogLevel::kWarning, "checkpoint: {}: `latest` is not moved: {}", to_.url, written.error().to_string());
    if (auto cleaned = clean_up(to_, step_, manifest.attempt, {.keep = options_.keep, .line = manifest.line}, false);
        !cleaned)
      log(LogLevel::kWarning, "checkpoint: {}: older files are left: {}", to_.url, cleaned.error().to_string());
    return {};
  }

  Status wait_a_while(const std::string& what) {
    if (Clock::now() >= deadline_) return fail(ErrorCode::kTimeout, "copy step {}: {}", step_, what);
    if (sleep_until(std::min(deadline_, Clock::now() + kBetweenLooks), stop_)) return {};
    return fail(ErrorCode::kCancelled, "copy step {}: stopped", step_);
  }

  const std::span<const Location> from_;
  const Location& to_;
  const int64_t step_;
  const StepCopyOptions& options_;
  const std::stop_token stop_;
  const Clock::time_point deadline_;
  Source source_;
};

}  // namespace

Result<StepCopy> copy_step(std::span<const Location> from, const Location& to, int64_t step,
                           const StepCopyOptions& options, std::stop_token stop) {
  return StepCopier(from, to, step, options, std::move(stop)).run();
}

}  // namespace millrace::checkpoint
