// SPDX-License-Identifier: Apache-2.0
#pragma once

// The hashes of an object's blocks, stored for objects whose storage has no hash of the content
// (docs/format/block_hashes.md). Values; thread-safe to read.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"

namespace millrace::formats {

struct BlockHashes {
  int64_t object_size = 0;
  std::string object_version;  // from the storage, such as an ETag; the hashes are valid for it only; at most 4 KiB
  Hash128 object_hash;         // XXH3-128 of the whole object
  int64_t block_bytes = 0;
  std::vector<Hash128> blocks;  // XXH3-128 of [i * block_bytes, (i + 1) * block_bytes); the last may be shorter
};

// REQUIRES: sizes are not negative, block_bytes is not 0, and the number of blocks matches object_size.
std::string serialize_block_hashes(const BlockHashes& hashes);
// Errors: corruption (its checksum, cut, counts that do not fit), unsupported (a version this build does not know).
// `source` is for messages.
[[nodiscard]] Result<BlockHashes> parse_block_hashes(std::span<const std::byte> file, std::string_view source);

}  // namespace millrace::formats
