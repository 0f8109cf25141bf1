// SPDX-License-Identifier: Apache-2.0
#pragma once

// The facts known before the first byte of a copy moves: the source, its expected hashes, what the target already
// holds, and how the two can be compared. Belongs to one thread.

#include <memory>
#include <optional>
#include <stop_token>

#include "millrace/formats/block_hashes.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {

struct CopyJob {
  const Location& from;
  const ObjectInfo& source;
  const Location& to;
  const TransferOptions& options;
  std::stop_token stop;
  Progress* progress = nullptr;  // counts this object; may be null for plan_copy()
  bool again = false;            // after one that could not go on as it had planned
};

// How a part of the source is held against the same range of the old target. A storage that writes at any place is
// taken to be one whose bytes are cheap to read: a file system or memory.
enum class Compare {
  kNothing,
  kRecorded,      // the block hashes of both are known: neither is read
  kOldContent,    // the source's hashes are known: the old target is read
  kNewContent,    // the old target's hashes are known: the source is read, as it is anyway
  kBothContents,  // both are read
};

struct CopyPlan {
  std::unique_ptr<RandomReader> source;
  std::optional<formats::BlockHashes> known;  // block hashes of the source
  std::optional<ContentChecksum> checksum;    // checksum kept by the source's storage, if no block hashes are known
  bool has_file = false;                      // parts can be sent from the source's file, and are only hashed then
  bool by_file = false;                       // and are: it is in the page cache
  bool in_server = false;                     // the target's server copies, and the content never passes here

  Compare compare = Compare::kNothing;
  ObjectInfo old;  // the target as it is; the rest is set where `compare` asks for it
  std::unique_ptr<RandomReader> old_reader;
  std::optional<formats::BlockHashes> old_hashes;
  bool same_attributes = true;  // only content would be written
  // The ETag of an object without block hashes on one side, where the other has one of the same size that it may prove.
  std::string etag;

  WriteOptions write;
};

// Errors: those of opening the source; corruption when it is not the version or size that `job.source` says.
[[nodiscard]] Result<CopyPlan> plan_copy(const CopyJob& job, bool delta);

// The expected report of a copy of `size` bytes, where there is no old target to compare with.
TransferReport estimated_report(Storage& from, Storage& to, int64_t size);

// Whether all blocks of [offset, offset + size) are the same in both. REQUIRES: the range is whole blocks of `fresh`.
bool same_blocks(std::span<const Hash128> fresh, const formats::BlockHashes& old, int64_t offset, int64_t size);

}  // namespace millrace::sync
