// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes several hashes of content in one pass over the memory: of the whole, of its blocks, and the checksum that a
// storage keeps. The bytes come in order. Belongs to one thread.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/storage/checksum.h"
#include "millrace/storage/storage.h"

namespace millrace::sync {

class ContentHash {
 public:
  ContentHash(bool whole, bool blocks, std::optional<ChecksumStream> checksum = {});

  void update(std::span<const std::byte> bytes);
  // Ends the last block, which may be short. No bytes may follow.
  void finish();

  // The hash of all bytes so far. REQUIRES: `whole` was set.
  Hash128 digest() const { return whole_->digest(); }
  // The checksum of the requested kind, after finish().
  const std::optional<ContentChecksum>& checksum() const { return told_; }
  // The hashes of the blocks that have ended.
  const std::vector<Hash128>& blocks() const { return blocks_; }

 private:
  void end_block();

  std::optional<Xxh3Stream> whole_;
  std::optional<Xxh3Stream> block_;
  std::optional<ChecksumStream> checksum_;
  std::optional<ContentChecksum> told_;
  int64_t in_block_ = 0;  // bytes of the block that has not ended
  std::vector<Hash128> blocks_;
};

}  // namespace millrace::sync
