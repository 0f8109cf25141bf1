// SPDX-License-Identifier: Apache-2.0
#pragma once

// The index file beside a shard: the place, token count and hash of each sample (docs/format/shard_index.md). Its name
// is the shard's with ".index" appended. Values; thread-safe to read.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/tar.h"

namespace millrace::formats {

inline constexpr uint32_t kUnknownTokens = 0xFFFFFFFF;  // in `tokens` of a shard whose ids were not read

// The content of a sample's bytes.
enum class SampleExtentKind : uint32_t {
  kMembers = 0,  // whole members of a tar file; `ids_field` names the field with the ids
  kIds = 1,      // only ids; `ids_field` says how they are written, "u16" or "u32"
};

// Facts about a shard as a whole.
struct ShardFacts {
  SampleExtentKind kind = SampleExtentKind::kMembers;
  int64_t shard_size = 0;  // bytes of the shard's file
  // XXH3-128 of the whole file. For kIds it covers first the bytes from the first sample on, then those before it,
  // because a writer knows the head with its counts last.
  Hash128 shard_hash;
  Hash128 tokenizer_hash;  // zeros when unknown (a foreign shard)
  std::string ids_field;   // "token_ids.npy"; empty when the shard has none
  // A small JSON object from the writer of the index (`prepare`: configuration and place in the input); at most 64 KiB.
  std::string producer = "{}";
};

// One entry per sample, in shard order. Extents [offset, offset + size) hold the content of ShardFacts::kind and do
// not overlap.
struct ShardRows {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> size;
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> hash;  // XXH3-64 of the extent

  int64_t samples() const { return static_cast<int64_t>(offset.size()); }
};

// The columns of an index, in the order of its file.
enum class IndexColumn : size_t { kOffset = 0, kSize = 1, kHash = 2, kTokens = 3 };
inline constexpr size_t kIndexColumns = 4;
inline constexpr size_t kIndexRowBytes = 28;
constexpr int64_t index_value_bytes(IndexColumn column) {
  return column == IndexColumn::kTokens ? sizeof(uint32_t) : sizeof(uint64_t);
}

// A whole index in memory. IndexPages (index_pages.h) reads an index of any size.
struct ShardIndex : ShardFacts, ShardRows {
  int64_t total_tokens() const;  // 0 when unknown
  bool tokens_known() const;     // there is a field with ids, and the ids of all samples were counted
};

// REQUIRES: the columns are equally long, `producer` is at most 64 KiB and `ids_field` 4 KiB.
std::string serialize_shard_index(const ShardIndex& index);
// Returns the size of an index file without the texts in its header.
int64_t shard_index_bytes(int64_t samples);
// Writes the index of a shard whose rows are not in memory. `visit_column` passes all values of a column to `visit`,
// piece by piece, in memory layout. Returns the XXH3-128 of the written bytes. Errors: those of `out` and
// `visit_column`.
using VisitValues = std::function<Status(std::span<const std::byte> values)>;
[[nodiscard]] Result<Hash128> write_shard_index(
    ByteSink& out, const ShardFacts& facts, int64_t samples,
    const std::function<Status(IndexColumn column, const VisitValues& visit)>& visit_column);
// Parses an index file. Errors: corruption (its checksum, cut, extents that overlap, leave the shard or do not fit
// `kind`), unsupported (a version this build does not know). `source` is for messages.
[[nodiscard]] Result<ShardIndex> parse_shard_index(std::span<const std::byte> file, std::string_view source);

// Reads a whole shard and builds its index. `asked_field` (upper or lower case) names the field whose ids are counted.
// Empty: the first that exists of "token_ids.npy", "token_ids.json", "input_ids.npy", "input_ids.json", else none.
// `skipped` receives what the archive has that belongs to no sample.
// Errors: those of SampleReader and of the ids; invalid_argument (no such field, or a field that is neither .npy nor
// .json).
[[nodiscard]] Result<ShardIndex> index_shard(const RandomReader& shard, std::string_view asked_field = {},
                                             TarSkipped* skipped = nullptr);
// Does the same for samples of any kind: their fields may differ, and no ids are counted.
[[nodiscard]] Result<ShardIndex> index_any_shard(const RandomReader& shard, TarSkipped* skipped = nullptr);

// Checks the extents of rows. The first row is number `first` of the shard, and the sample before it ends at byte
// `end`. Errors: corruption (extents that overlap, leave the shard or do not fit `kind`). `source` is for messages.
[[nodiscard]] Status check_rows(const ShardFacts& facts, const ShardRows& rows, int64_t first, std::string_view source,
                                uint64_t end = 0);

// Checks a shard against its index: size, the hash of every sample, that the extents hold whole samples, and the hash
// of the whole file.
// Errors: corruption naming the shard, the sample's number and offset; those of read_at.
[[nodiscard]] Status check_shard(const RandomReader& shard, const ShardIndex& index);

// Does the same as check_shard() for rows that come in several runs. Call begin(), then add() for each run, then
// finish(); after an error, call nothing more. Reads the shard once, in blocks of 1 MiB. Belongs to one thread.
class ShardCheck {
 public:
  // REQUIRES: `shard` and `facts` outlive this object.
  ShardCheck(const RandomReader& shard, const ShardFacts& facts);
  ~ShardCheck();
  [[nodiscard]] Status begin();
  [[nodiscard]] Status add(const ShardRows& rows);  // REQUIRES: check_rows() passed; rows follow the previous ones
  [[nodiscard]] Status finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::formats
