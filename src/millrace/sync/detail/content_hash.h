// SPDX-License-Identifier: Apache-2.0
#pragma once

// The hashes of content: of what comes in order, the whole, its blocks, and the checksum that a storage keeps of it, in
// one pass over the memory (ContentHash belongs to one thread); of an object, by reading it.

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/hash.h"
#include "millrace/base/progress.h"
#include "millrace/storage/checksum.h"
#include "millrace/storage/storage.h"

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

// XXH3-128 of the version of an object that a listing or stat told. Errors: those of reading, cancelled.
[[nodiscard]] Result<Hash128> hash_object(Storage& storage, const ObjectInfo& object, std::stop_token stop = {},
                                          Progress* progress = nullptr);

}  // namespace millrace::sync
