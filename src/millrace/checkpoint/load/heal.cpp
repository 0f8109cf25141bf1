// SPDX-License-Identifier: Apache-2.0
// Writes what a load found damaged in a tier anew, from another tier.
#include <fmt/format.h>

#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/load/stored_checkpoint.h"
#include "millrace/checkpoint/tier/part_copy.h"

namespace millrace::checkpoint {

namespace {

constexpr std::chrono::seconds kHealing{600};  // for a manifest

}  // namespace

Result<int64_t> StoredCheckpoint::heal(std::stop_token stop) const {
  std::set<FileInTier> damaged;
  std::vector<size_t> manifests;
  {
    MutexLock lock(mutex_);
    damaged.swap(damaged_);
    manifests.swap(damaged_manifests_);
  }
  int64_t healed = 0;
  Status first;
  const auto note = [&](Result<bool> done) {
    if (done) healed += *done ? 1 : 0;
    if (first && !done) first = tl::unexpected<Error>(std::move(done).error());
  };
  for (const size_t tier : manifests) note(heal_manifest(tier, stop));
  for (const FileInTier& place : damaged) {
    const auto& [file, tier] = place;
    if (hangs_[tier]) continue;
    note((file.source ? heal_source(place, stop) : heal_part(file.rank, tier, stop)).map([] { return true; }));
  }
  if (!first) return tl::unexpected<Error>(std::move(first).error());
  return healed;
}

Result<bool> StoredCheckpoint::heal_manifest(size_t tier, const std::stop_token& stop) const {
  const std::string what = fmt::format("heal the manifest of step {} in {}", manifest_.step, roots_[tier].url);
  const auto is_there = [&](int64_t rank) {
    const Location at = directories_[tier].child(part_name(rank));
    const ManifestPart& expected = manifest_.parts[static_cast<size_t>(rank)];
    const auto text = read_object(*at.storage, at.key, kMaxRecordBytes);
    return text && std::ssize(*text) == expected.bytes && xxh3_128(*text) == expected.hash;
  };
  const Location manifest = step_location(roots_[tier], manifest_.step).child(kManifestName);
  if (!manifest.storage->stat(manifest.key)) return false;  // removed meanwhile
  // A tier of one node has only its own parts. Without any, the damaged manifest may be another attempt's.
  int64_t rank = 0;
  while (rank < manifest_.world_size() && !is_there(rank)) ++rank;
  if (rank == manifest_.world_size()) return false;
  for (size_t other = 0; other < roots_.size(); ++other) {
    const auto stored = other == tier || hangs_[other] ? Result<StoredManifest>(fail(ErrorCode::kNotFound, "not asked"))
                                                       : read_manifest(roots_[other], manifest_.step);
    if (!stored || stored->manifest.attempt != manifest_.attempt) continue;
    const StepCommit commit{roots_[tier],           manifest_.step,          manifest_.attempt,
                            manifest_.world_size(), Clock::now() + kHealing, stop};
    ASSIGN_OR_RETURN(const bool written, with_context(adopt_manifest(commit, roots_[other]), what));
    if (written)
      log(LogLevel::kWarning, "checkpoint: the manifest of step {} in {}: written anew from {}", manifest_.step,
          roots_[tier].url, roots_[other].url);
    return written;
  }
  return fail(ErrorCode::kNotFound, "{}: no tier has it any more", what);
}

Status StoredCheckpoint::heal_source(const FileInTier& place, const std::stop_token& stop) const {
  const auto& [file, tier] = place;
  ASSIGN_OR_RETURN(const auto record, part_record(file.rank));
  const PartSource& source = record->sources[*file.source];
  for (size_t other = 0; other < roots_.size(); ++other) {
    if (hangs_[other]) continue;
    auto stored = read_manifest(roots_[other], source.step);
    if (!stored || stored->manifest.attempt != source.attempt) continue;
    return StoredCheckpoint(roots_, std::move(stored->manifest), {}, patience_).heal_part(file.rank, tier, stop);
  }
  return fail(ErrorCode::kNotFound,
              "heal step {} in {}: step {} of attempt {}, which it refers to, is committed in no tier", manifest_.step,
              roots_[tier].url, source.step, source.attempt);
}

Status StoredCheckpoint::heal_part(int64_t rank, size_t tier, const std::stop_token& stop) const {
  const auto is_committed = [&] {
    const auto there = read_manifest(roots_[tier], manifest_.step);
    return there && there->manifest.attempt == manifest_.attempt;
  };
  const std::string what = fmt::format("heal step {} in {}", manifest_.step, roots_[tier].url);
  if (!is_committed()) return fail(ErrorCode::kNotFound, "{}: it is not committed there", what);
  ASSIGN_OR_RETURN(const auto record, part_record(rank));
  WrittenRecord written{*record, serialize(*record)};
  const ManifestPart& expected = manifest_.parts[static_cast<size_t>(rank)];
  if (std::ssize(written.text) != expected.bytes || xxh3_128(written.text) != expected.hash)
    return fail(ErrorCode::kUnsupported, "{}: another build of Millrace wrote the record of rank {}", what, rank);
  std::vector<Location> sources;
  for (size_t other = 0; other < directories_.size(); ++other) {
    if (other != tier && !hangs_[other]) sources.push_back(directories_[other]);
  }
  if (sources.empty()) return fail(ErrorCode::kUnavailable, "{}: no other tier answers", what);
  const Location& to = directories_[tier];
  RETURN_IF_ERROR(with_context(bring_part(sources, to, written, stop), what));
  if (is_committed()) {
    log(LogLevel::kWarning, "checkpoint: {}: written anew from another tier",
        to.child(manifest_.places().file(rank)).url);
    return {};
  }
  // Retention has removed the step meanwhile: nothing may be left of it.
  return to.storage->remove(std::vector{to.child(part_name(rank)).key, to.child(manifest_.places().file(rank)).key});
}

}  // namespace millrace::checkpoint
