// SPDX-License-Identifier: Apache-2.0
#pragma once

// The layout of a shard index file (docs/format/shard_index.md): its header, and the offsets of its columns.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

inline constexpr size_t kIndexFixedHeader = 80;
inline constexpr size_t kIndexChecksumBytes = 16;
inline constexpr size_t kIndexMaxHeader = kIndexFixedHeader + (4 << 10) + (64 << 10) + 8;

constexpr size_t aligned_to_8(size_t size) {
  return (size + 7) / 8 * 8;
}

struct IndexHeader {
  ShardFacts facts;
  int64_t samples = 0;
  int64_t size = 0;  // size of the header; the columns begin there

  int64_t column_at(IndexColumn column) const {
    return size + static_cast<int64_t>(column) * samples * static_cast<int64_t>(sizeof(uint64_t));
  }
  int64_t checksum_at() const {  // where the columns and their padding end
    return size + static_cast<int64_t>(aligned_to_8(static_cast<size_t>(samples) * kIndexRowBytes));
  }
};

// REQUIRES: `producer` is at most 64 KiB and `ids_field` 4 KiB.
std::string index_header(const ShardFacts& facts, int64_t samples);
// Parses the header. `begin`: the first kIndexMaxHeader bytes of the file, or the whole file if it is smaller. Errors:
// corruption (not an index, cut, sizes that do not fit together), unsupported (another version).
[[nodiscard]] Result<IndexHeader> parse_index_header(std::span<const std::byte> begin, int64_t file_size,
                                                     std::string_view source);

// Appends a hash with its most significant byte first, so that a dump of the file reads like the output of xxhsum.
void put_index_hash(std::string& out, Hash128 hash);
Hash128 take_index_hash(std::span<const std::byte> bytes);  // REQUIRES: 16 bytes
tl::unexpected<Error> bad_index_checksum(std::string_view source);

}  // namespace millrace::formats
