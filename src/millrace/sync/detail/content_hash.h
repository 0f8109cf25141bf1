// SPDX-License-Identifier: Apache-2.0
#pragma once

// The hashes of content that comes in order: of the whole, of its blocks, and the checksum that a storage keeps of it,
// in one pass over the memory.
// Belongs to one thread.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/hash.h"
#include "millrace/storage/checksum.h"

namespace millrace::sync {

class ContentHash {
 public:
  ContentHash(bool whole, bool blocks, std::optional<ContentChecksum::Kind> checksum = {});

  void update(std::span<const std::byte> bytes);
  // Ends the last block, which may be a short one. Nothing may come after it.
  void finish();

  // Of everything so far. REQUIRES: whole.
  Hash128 digest() const { return whole_->digest(); }
  // Of everything so far, of the kind that was asked for.
  const std::optional<ContentChecksum>& checksum() const { return checksum_; }
  // The blocks that have ended.
  const std::vector<Hash128>& blocks() const { return blocks_; }

 private:
  void end_block();

  std::optional<Xxh3Stream> whole_;
  std::optional<Xxh3Stream> block_;
  std::optional<ContentChecksum> checksum_;
  int64_t in_block_ = 0;  // bytes of the block that has not ended
  std::vector<Hash128> blocks_;
};

}  // namespace millrace::sync
