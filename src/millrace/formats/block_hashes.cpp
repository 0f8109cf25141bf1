// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/block_hashes.h"

#include <array>
#include <cassert>

#include "millrace/base/io/io.h"

namespace millrace::formats {
namespace {

// Layout version 1, as docs/format/block_hashes.md draws it. The offsets of published versions never change.
constexpr std::string_view kBlocksMagic = "MLRBLOCK";
constexpr uint64_t kBlocksVersion = 1;
constexpr size_t kBlocksFixedHeader = 48;
constexpr size_t kHashBytes = 16;
constexpr size_t kMaxVersionText = 4096;

void put_number(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 255);
}
uint64_t number_at(std::string_view file, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(file[at + static_cast<size_t>(i)]);
  return value;
}

// The canonical form, most significant byte first: a dump of the file reads like xxhsum's output.
void put_block_hash(std::string& out, Hash128 hash) {
  for (const uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(half >> shift & 255);
  }
}
Hash128 block_hash_at(std::string_view file, size_t at) {
  std::array<uint64_t, 2> halves{};
  for (size_t i = 0; i < kHashBytes; ++i) halves[i / 8] = halves[i / 8] << 8 | static_cast<uint8_t>(file[at + i]);
  return {halves[0], halves[1]};
}

size_t hashes_begin(size_t version_text) {
  return (kBlocksFixedHeader + version_text + 7) / 8 * 8;
}

uint64_t count_blocks(uint64_t size, uint64_t block_bytes) {
  return size / block_bytes + (size % block_bytes != 0 ? 1 : 0);
}

}  // namespace

std::string serialize_block_hashes(const BlockHashes& hashes) {
  assert(hashes.block_bytes > 0 && hashes.object_version.size() <= kMaxVersionText &&
         hashes.blocks.size() == count_blocks(static_cast<uint64_t>(hashes.object_size),
                                              static_cast<uint64_t>(hashes.block_bytes)));  // a caller's defect
  std::string out(kBlocksMagic);
  put_number(out, kBlocksVersion, 4);
  put_number(out, hashes.object_version.size(), 4);
  put_number(out, static_cast<uint64_t>(hashes.object_size), 8);
  put_number(out, static_cast<uint64_t>(hashes.block_bytes), 8);
  put_block_hash(out, hashes.object_hash);
  out += hashes.object_version;
  out.resize(hashes_begin(hashes.object_version.size()), '\0');
  for (const Hash128 hash : hashes.blocks) put_block_hash(out, hash);
  put_block_hash(out, xxh3_128(out));
  return out;
}

Result<BlockHashes> parse_block_hashes(std::span<const std::byte> file, std::string_view source) {
  const auto bad = [&](std::string_view reason) { return fail(ErrorCode::kCorruption, "{}: {}", source, reason); };
  const std::string_view text = as_text(file);
  if (!text.starts_with(kBlocksMagic)) return bad("does not begin as a file of block hashes");
  if (text.size() < kBlocksFixedHeader + kHashBytes) return bad("ends inside its header");
  const uint64_t version = number_at(text, 8, 4);
  if (version != kBlocksVersion) {
    return fail(ErrorCode::kUnsupported, "{}: version {} of block hashes; this build knows {}", source, version,
                kBlocksVersion);
  }
  const size_t end = text.size() - kHashBytes;
  if (block_hash_at(text, end) != xxh3_128(text.substr(0, end))) return bad("does not match its own checksum");
  const size_t version_text = number_at(text, 12, 4);
  const uint64_t size = number_at(text, 16, 8);
  const uint64_t block_bytes = number_at(text, 24, 8);
  if (size > INT64_MAX || block_bytes == 0 || block_bytes > INT64_MAX) return bad("sizes that no object has");
  if (version_text > kMaxVersionText || hashes_begin(version_text) > end) return bad("ends inside its header");
  const size_t begin = hashes_begin(version_text);
  const uint64_t count = count_blocks(size, block_bytes);
  if ((end - begin) % kHashBytes != 0 || (end - begin) / kHashBytes != count) {
    return bad("has not as many blocks as its object");
  }
  BlockHashes hashes{.object_size = static_cast<int64_t>(size),
                     .object_version = std::string(text.substr(kBlocksFixedHeader, version_text)),
                     .object_hash = block_hash_at(text, 32),
                     .block_bytes = static_cast<int64_t>(block_bytes)};
  hashes.blocks.reserve(count);
  for (size_t at = begin; at < end; at += kHashBytes) hashes.blocks.push_back(block_hash_at(text, at));
  return hashes;
}

}  // namespace millrace::formats
