// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/copy_plan.h"

#include <algorithm>

#include "millrace/storage/local/local.h"
#include "millrace/sync/detail/attributes.h"
#include "millrace/sync/detail/etag_match.h"
#include "millrace/sync/detail/object_properties.h"
#include "millrace/sync/detail/sidecar.h"

namespace millrace::sync {
namespace {

constexpr int64_t kMostParts = 10'000;  // that S3 takes of one object
// A choice. A part that the server copies costs no memory here; S3 takes up to 5 GiB, and several at once are faster.
constexpr int64_t kServerPartBytes = int64_t{1} << 30;
// Parts that are sent from the page cache cost no memory either. A server takes few of them with less work, and a kill
// loses those under way: so twice a block, where there are more than twice as many parts as are sent at once (16).
constexpr int64_t kMostFilePartBytes = 16 << 20;
constexpr int64_t kManyParts = 32;

// A part is whole blocks, so that it can be compared; to move no more than what changed it is one.
int64_t wanted_part_bytes(const CopyPlan& plan, int64_t size) {
  int64_t fewest = plan.in_server ? kServerPartBytes : kBlockBytes;
  const bool grows = plan.by_file && plan.compare == Compare::kNothing;
  while (grows && fewest < kMostFilePartBytes && size > kManyParts * fewest) fewest *= 2;
  const int64_t blocks = (size / kMostParts + kBlockBytes) / kBlockBytes;
  return std::max(fewest, blocks * kBlockBytes);
}

Status open_source(const CopyJob& job, CopyPlan& plan) {
  const OpenOptions options{.expected_version = job.source.version, .known_size = job.source.size, .once = true};
  ASSIGN_OR_RETURN(plan.source, job.from.storage->open_read(job.from.key, options));
  if (plan.source->size() == job.source.size) return {};
  return fail(ErrorCode::kCorruption, "{} has {} bytes, not {}: it changed since it was listed", plan.source->name(),
              plan.source->size(), job.source.size);
}

// A storage that will not say has none.
Status ask_checksum(const CopyJob& job, const ObjectInfo& pinned, CopyPlan& plan) {
  const auto checksum = job.from.storage->checksum(pinned);
  if (checksum) plan.checksum = *checksum;
  if (checksum) return {};
  if (checksum.error().code() != ErrorCode::kCorruption && !gave_no_answer(checksum.error())) return {};
  return tl::unexpected<Error>(checksum.error());
}

// A file of the size of an object that has no block hashes may prove to be it.
void find_etag_of_source(const CopyJob& job, CopyPlan& plan) {
  Storage& storage = *job.to.storage;
  if (!storage.capabilities().is_local() || !job.options.target || job.options.target->size != job.source.size) return;
  const std::string_view etag = etag_of(*job.from.storage, job.source);
  if (etag.empty() || plan.write.posix) return;
  plan.old = *job.options.target;
  plan.old.key = job.to.key;
  const OwnContentScope own;
  auto reader = storage.open_read(job.to.key, {.expected_version = plan.old.version, .known_size = plan.old.size});
  if (!reader) return;
  plan.old_reader = std::move(*reader);
  plan.etag = etag;
}

// Finds what the target holds, and how to compare it with the source.
Status find_old(const CopyJob& job, CopyPlan& plan) {
  Storage& storage = *job.to.storage;
  const bool cheap_target = storage.capabilities().is_local();
  const bool cheap_source = job.from.storage->capabilities().is_local();
  if (!plan.known && !cheap_source) {
    find_etag_of_source(job, plan);
    return {};
  }
  if (!storage.capabilities().copy_range) return {};
  auto old = job.options.target ? Result<ObjectInfo>(*job.options.target) : storage.stat(job.to.key);
  if (!old && gave_no_answer(old.error())) return tl::unexpected<Error>(std::move(old).error());
  if (!old) return {};  // not there, or its trouble shows when it is written
  plan.old = std::move(*old);
  plan.old.key = job.to.key;
  if (!cheap_target) {
    if (plan.old.size > kBlockBytes) {
      ASSIGN_OR_RETURN(plan.old_hashes, load_sidecar(storage, plan.old));
    }
    if (!plan.old_hashes) {
      const bool may_be_it = cheap_source && plan.old.size == job.source.size && !plan.write.posix;
      if (may_be_it) plan.etag = etag_of(storage, plan.old);
      return {};
    }
  }
  const OwnContentScope own;
  auto reader =
      storage.open_read(job.to.key, {.expected_version = plan.old.version, .known_size = plan.old.size, .once = true});
  if (!reader && gave_no_answer(reader.error())) return tl::unexpected<Error>(std::move(reader).error());
  if (!reader) return {};
  plan.old_reader = std::move(*reader);
  plan.same_attributes = same_attributes(storage, plan.write.posix, plan.old.posix);
  if (cheap_target) {
    plan.compare = plan.known ? Compare::kOldContent : Compare::kBothContents;
  } else {
    plan.compare = plan.known ? Compare::kRecorded : Compare::kNewContent;
  }
  return {};
}

// The target's storage copies by itself, and the content never passes here.
bool copies_in_server(Storage& from, Storage& to) {
  return !to.capabilities().is_local() && to.copies_from(from);
}

}  // namespace

TransferReport estimated_report(Storage& from, Storage& to, int64_t size) {
  TransferReport report;
  (copies_in_server(from, to) ? report.copied_bytes : report.moved_bytes) = size;
  return report;
}

Result<CopyPlan> plan_copy(const CopyJob& job, bool delta) {
  CopyPlan plan;
  RETURN_IF_ERROR(open_source(job, plan));
  const int64_t size = job.source.size;
  const Capabilities from = job.from.storage->capabilities();
  const Capabilities to = job.to.storage->capabilities();
  if (size == 0 && !from.is_local()) {
    ObjectInfo empty = job.source;
    empty.key = job.from.key;
    RETURN_IF_ERROR(check_not_emptied(*job.from.storage, empty));
  }
  plan.in_server = copies_in_server(*job.from.storage, *job.to.storage);
  const LocalFile* const file = plan.source->local_file();
  plan.has_file = to.sends_files && !plan.in_server && size > kBlockBytes && file != nullptr;
  plan.by_file = plan.has_file && file->is_cached();
  if (size > kBlockBytes && !from.is_local()) {
    ObjectInfo pinned = job.source;
    pinned.key = job.from.key;
    pinned.version = plan.source->version();
    ASSIGN_OR_RETURN(plan.known, load_sidecar(*job.from.storage, pinned));
    if (!plan.known && !plan.in_server) RETURN_IF_ERROR(ask_checksum(job, pinned, plan));
  }
  if (job.options.posix) {
    ObjectInfo info = job.source;
    if (!info.posix) {
      ASSIGN_OR_RETURN(info, job.from.storage->stat(job.from.key));
    }
    info.key = job.from.key;
    plan.write.posix = attributes_of_content(*job.from.storage, info);
  }
  const bool may_compare = size > kBlockBytes || !to.is_local() || !from.is_local();
  if (delta && (size > kBlockBytes || job.options.target) && may_compare) RETURN_IF_ERROR(find_old(job, plan));
  // A file that is replaced keeps its permissions, a new one gets those of its source: as cp and rsync have it.
  plan.write.mode = job.options.target && job.options.target->mode != 0 ? job.options.target->mode : job.source.mode;
  // For a small file, to ask how much is free costs as much as to write it.
  plan.write.size_hint_bytes = to.is_local() && size <= kBlockBytes ? 0 : size;
  plan.write.brief = size <= kBlockBytes;
  plan.write.sparse = file != nullptr && file->has_holes();
  plan.write.part_bytes = wanted_part_bytes(plan, size);
  if (job.options.replaces) {
    using Condition = WriteOptions::Condition;
    plan.write.condition = job.options.replaces->empty() ? Condition::kIfAbsent : Condition::kIfVersion;
    plan.write.version = *job.options.replaces;
  }
  RETURN_IF_ERROR(plan_properties(job, plan));
  return plan;
}

bool same_blocks(std::span<const Hash128> fresh, const formats::BlockHashes& old, int64_t offset, int64_t size) {
  for (int64_t begin = offset; begin < offset + size; begin += kBlockBytes) {
    const auto i = static_cast<size_t>(begin / kBlockBytes);
    if (i >= old.blocks.size() || fresh[i] != old.blocks[i]) return false;
  }
  return true;
}

}  // namespace millrace::sync
