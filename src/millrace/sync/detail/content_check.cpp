// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/content_check.h"

#include <algorithm>
#include <cstring>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/log.h"
#include "millrace/storage/md5.h"
#include "millrace/sync/detail/sidecar.h"

namespace millrace::sync {
namespace {

// What is read or compared at once: a piece stays in the processor's second-level cache (256 KiB and more on the
// processors since 2010) until every hash has seen it.
constexpr size_t kCachedBytes = 256 << 10;

}  // namespace

void ContentCheck::restart(bool whole_blocks) {
  const bool keeps_blocks =
      !job_.to.storage->capabilities().is_local() && job_.source.size > kBlockBytes && job_.options.sidecar;
  checks_each_part_ = plan_.known && whole_blocks;
  hash_.emplace(!plan_.known, plan_.known || keeps_blocks || plan_.compare == Compare::kNewContent,
                plan_.checksum ? std::optional(ChecksumStream(plan_.checksum->kind, job_.source.size)) : std::nullopt);
  checked_blocks_ = 0;
}

// Reads a file in small pieces, which stay in the page cache for the send that follows.
template <class Take>
Status ContentCheck::for_each_piece(const Part& part, Take&& take) {
  if (!part.file) {
    take(part.buffer.span());
    return {};
  }
  const int64_t size = part.file->size();
  scratch_.resize(kCachedBytes);
  for (int64_t at = 0; at < size; at += std::ssize(scratch_)) {
    const auto piece = std::span(scratch_).first(static_cast<size_t>(std::min(size - at, std::ssize(scratch_))));
    RETURN_IF_ERROR(part.file->read_at(at, piece));
    take(piece);
  }
  return {};
}

Status ContentCheck::hash(Part& part, ContentHash& hash) {
  const bool wants_crc = part.file && job_.to.storage->capabilities().file_checksums;
  part.file_crc32c = 0;
  return for_each_piece(part, [&](std::span<const std::byte> piece) {
    hash.update(piece);
    if (wants_crc) part.file_crc32c = crc32c(piece, part.file_crc32c);
  });
}

Status ContentCheck::take(Part& part, const std::function<Status()>& read_again) {
  if (!checks_each_part_) {
    RETURN_IF_ERROR(hash(part, *hash_));
    if (part.offset + part.size == job_.source.size) {
      hash_->finish();
      RETURN_IF_ERROR(check_whole());
    }
    return check_ended_blocks();
  }
  if (part.action == PartAction::kFromOld) return {};  // it was compared with them
  ASSIGN_OR_RETURN(std::optional<WrongBlock> wrong, find_wrong_block(part));
  if (!wrong) return {};
  log(LogLevel::kWarning, "{}: block {} came with other bytes than it has, and is read again", job_.from.url,
      wrong->block);
  RETURN_IF_ERROR(read_again());
  ASSIGN_OR_RETURN(wrong, find_wrong_block(part));
  return wrong ? wrong_block(*wrong) : Status();
}

Status ContentCheck::check_whole() const {
  if (!plan_.checksum || hash_->checksum() == plan_.checksum) return {};
  return fail(ErrorCode::kCorruption, "what came of {} has the {} {}, and the server keeps {}", plan_.source->name(),
              checksum_name(plan_.checksum->kind), hash_->checksum()->digest, plan_.checksum->digest);
}

Status ContentCheck::check_ended_blocks() {
  if (!plan_.known) return {};
  for (; checked_blocks_ < hash_->blocks().size(); ++checked_blocks_) {
    if (hash_->blocks()[checked_blocks_] == plan_.known->blocks[checked_blocks_]) continue;
    return wrong_block({checked_blocks_, hash_->blocks()[checked_blocks_]});
  }
  return {};
}

Result<std::optional<ContentCheck::WrongBlock>> ContentCheck::find_wrong_block(Part& part) {
  ContentHash content(false, true);
  RETURN_IF_ERROR(hash(part, content));
  content.finish();
  const auto first = static_cast<size_t>(part.offset / kBlockBytes);
  for (size_t i = 0; i < content.blocks().size(); ++i) {
    if (content.blocks()[i] != plan_.known->blocks[first + i]) return WrongBlock{first + i, content.blocks()[i]};
  }
  return std::nullopt;
}

Status ContentCheck::wrong_block(const WrongBlock& wrong) const {
  return fail(ErrorCode::kCorruption, "block {} of {} has the hash {}, not {} as {} says", wrong.block,
              plan_.source->name(), to_hex(wrong.hash), to_hex(plan_.known->blocks[wrong.block]),
              sidecar_key(job_.from.key));
}

Result<PartAction> ContentCheck::choose(const Part& part, const std::map<int64_t, std::string>& sent_md5s) {
  if (const auto sent = sent_md5s.find(part.offset); sent != sent_md5s.end()) {
    Md5 md5;
    RETURN_IF_ERROR(for_each_piece(part, [&](std::span<const std::byte> piece) { md5.update(piece); }));
    if (md5.finish_hex() == sent->second) return PartAction::kKeep;
  }
  if (plan_.compare == Compare::kNewContent &&
      same_blocks(hash_->blocks(), *plan_.old_hashes, part.offset, part.size)) {
    return PartAction::kFromOld;
  }
  if (plan_.compare == Compare::kBothContents && old_is_same(part)) return PartAction::kFromOld;
  return PartAction::kWrite;
}

// An old target that cannot be read is taken for another one.
bool ContentCheck::old_is_known_content(const Part& part) const {
  if (plan_.old.size < part.offset + part.size) return false;
  if (!plan_.old_reader->read_at(part.offset, part.buffer.span())) return false;
  return xxh3_128(part.buffer.span()) == plan_.known->blocks[static_cast<size_t>(part.offset / kBlockBytes)];
}

bool ContentCheck::old_is_same(const Part& part) {
  if (plan_.old.size < part.offset + part.size) return false;
  scratch_.resize(kCachedBytes);
  for (int64_t at = 0; at < part.size; at += std::ssize(scratch_)) {
    const auto bytes = static_cast<size_t>(std::min(part.size - at, std::ssize(scratch_)));
    if (!plan_.old_reader->read_at(part.offset + at, std::span(scratch_).first(bytes))) return false;
    if (std::memcmp(scratch_.data(), part.buffer.data() + at, bytes) != 0) return false;
  }
  return true;
}

}  // namespace millrace::sync
