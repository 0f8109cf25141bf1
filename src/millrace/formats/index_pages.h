// SPDX-License-Identifier: Apache-2.0
#pragma once

// A shard index of any size, read in pages of 1,024 samples. `open` reads the file once, front to back in pieces of
// 4 MiB, and holds it against its checksum; what it keeps is 32 bytes a page: the hashes that prove each page when it
// is read again. A value, thread-safe to read.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

class IndexPages {
 public:
  static constexpr int64_t kPageSamples = 1024;

  // Errors: corruption (own checksum, cut, sizes that do not fit), unsupported (version), those of read_at.
  [[nodiscard]] static Result<IndexPages> open(const RandomReader& file);
  // The same of a file that is in memory, without a copy of it.
  [[nodiscard]] static Result<IndexPages> open(std::span<const std::byte> file, std::string_view source);

  const ShardFacts& facts() const { return facts_; }
  int64_t samples() const { return samples_; }
  int64_t total_tokens() const { return tokens_known() ? tokens_ : 0; }  // 0 when unknown
  bool tokens_known() const { return counted_ && !facts_.ids_field.empty(); }
  Hash128 file_hash() const { return file_hash_; }  // XXH3-128 of the index's file
  int64_t file_size() const { return file_size_; }
  int64_t pages() const { return (samples_ + kPageSamples - 1) / kPageSamples; }

  // The ranges of a page's values in the file, one per column. REQUIRES: 0 <= page < pages().
  struct Range {
    int64_t offset = 0;
    int64_t size = 0;
  };
  std::array<Range, 4> ranges(int64_t page) const;
  // The rows of a page out of the file that open() was given whole; they are not checked again.
  ShardRows take_page(int64_t page, std::span<const std::byte> file) const;
  // The rows of a page out of the bytes of its ranges, laid end to end. The extents are the caller's to check
  // (check_rows). Errors: corruption (they are not what `open` read). REQUIRES: `bytes` has the size of the ranges.
  [[nodiscard]] Result<ShardRows> parse(int64_t page, std::span<const std::byte> bytes, std::string_view source) const;

  // Reads pages one after the other and visits the rows of each, with extents that were checked; `first` is the number
  // of the first. A visit that answers an error ends the walk with it.
  [[nodiscard]] Status visit_rows(const RandomReader& file,
                                  const std::function<Status(int64_t first, const ShardRows& rows)>& visit) const;
  // The same for the tokens of each sample alone, in runs of many pages.
  [[nodiscard]] Status visit_tokens(const RandomReader& file,
                                    const std::function<Status(std::span<const uint32_t> tokens)>& visit) const;

 private:
  struct Opening;
  IndexPages() = default;
  [[nodiscard]] static Result<IndexPages> open(const RandomReader& file, std::span<const std::byte> begin,
                                               bool is_whole);

  ShardFacts facts_;
  int64_t samples_ = 0;
  int64_t tokens_ = 0;
  bool counted_ = true;  // no sample has kUnknownTokens
  Hash128 file_hash_;
  int64_t file_size_ = 0;
  std::array<int64_t, 4> column_at_{};
  std::array<std::vector<uint64_t>, 4> page_hashes_;  // a column, XXH3-64 of each page's values
};

// As check_shard of a ShardIndex; `index_file` is what `pages` was opened from.
[[nodiscard]] Status check_shard(const RandomReader& shard, const IndexPages& pages, const RandomReader& index_file);

}  // namespace millrace::formats
