// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans a copy before its first byte moves: the source, its expected hashes, the content of the target, and how the
// two can be compared. Belongs to one thread.

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
  bool again = false;            // repeats an attempt whose plan failed
};

// How a part of the source is compared with the same range of the old target. A storage that can write at any offset
// is assumed to be cheap to read: a file system or memory.
enum class Compare {
  kNothing,
  kRecorded,      // both block hashes are known: reads neither
  kOldContent,    // the source's hashes are known: reads the old target
  kNewContent,    // the old target's hashes are known: reads the source, as every copy does
  kBothContents,  // reads both
};

struct CopyPlan {
  std::unique_ptr<RandomReader> source;
  std::optional<formats::BlockHashes> known;  // block hashes of the source
  std::optional<ContentChecksum> checksum;    // checksum of the source's storage, if there are no block hashes
  bool has_file = false;                      // parts can be sent from the source's file; they are then only hashed
  bool by_file = false;                       // parts are sent from the file, which is in the page cache
  bool in_server = false;                     // the target's server copies; the content never passes this machine

  Compare compare = Compare::kNothing;
  ObjectInfo old;  // the target as it is; the fields below are set if `compare` needs them
  std::unique_ptr<RandomReader> old_reader;
  std::optional<formats::BlockHashes> old_hashes;
  bool same_attributes = true;  // the copy would change only the content
  // The ETag of an object on one side that has no block hashes. It may prove an object of the same size on the other
  // side.
  std::string etag;

  WriteOptions write;
};

// Plans a copy. Errors: those of opening the source; corruption (it has another version or size than `job.source`).
[[nodiscard]] Result<CopyPlan> plan_copy(const CopyJob& job, bool delta);

// Returns the expected report of a copy of `size` bytes without an old target.
TransferReport estimated_report(Storage& from, Storage& to, int64_t size);

// Whether all blocks of [offset, offset + size) are the same in both. REQUIRES: the range is whole blocks of `fresh`.
bool same_blocks(std::span<const Hash128> fresh, const formats::BlockHashes& old, int64_t offset, int64_t size);

}  // namespace millrace::sync
