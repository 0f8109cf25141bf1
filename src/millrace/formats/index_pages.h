// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a shard index of any size in pages of 1,024 samples. open() reads the file once, front to back in pieces of 4
// MiB, and checks it against its checksum. It keeps 32 bytes per page: the hashes that verify each page when it is
// read again. A value, thread-safe to read.

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

  // Errors: corruption (its checksum, cut, sizes that do not fit), unsupported (version), those of read_at.
  [[nodiscard]] static Result<IndexPages> open(const RandomReader& file);
  // Does the same for a file in memory, without copying it.
  [[nodiscard]] static Result<IndexPages> open(std::span<const std::byte> file, std::string_view source);

  const ShardFacts& facts() const { return facts_; }
  int64_t samples() const { return samples_; }
  int64_t total_tokens() const { return tokens_known() ? tokens_ : 0; }  // 0 when unknown
  bool tokens_known() const { return counted_ && !facts_.ids_field.empty(); }
  Hash128 file_hash() const { return file_hash_; }  // XXH3-128 of the index's file
  int64_t file_size() const { return file_size_; }
  int64_t pages() const { return (samples_ + kPageSamples - 1) / kPageSamples; }

  // Returns the ranges of a page's values in the file, one per column. REQUIRES: 0 <= page < pages().
  struct Range {
    int64_t offset = 0;
    int64_t size = 0;
  };
  std::array<Range, 4> ranges(int64_t page) const;
  // Returns the rows of a page from the file in memory that open() read. Does not check them again.
  ShardRows take_page(int64_t page, std::span<const std::byte> file) const;
  // Returns the rows of a page from the concatenated bytes of its ranges. The caller must check the extents
  // (check_rows). Errors: corruption (`bytes` differs from the bytes that open() read). REQUIRES: `bytes` has the size
  // of the ranges.
  [[nodiscard]] Result<ShardRows> parse(int64_t page, std::span<const std::byte> bytes, std::string_view source) const;

  // Reads all pages in order and visits the rows of each, with checked extents; `first` is the number of the first
  // row. If a visit returns an error, the walk ends with that error.
  [[nodiscard]] Status visit_rows(const RandomReader& file,
                                  const std::function<Status(int64_t first, const ShardRows& rows)>& visit) const;
  // Does the same for only the token counts of the samples; each visit gets those of many pages.
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
  std::array<std::vector<uint64_t>, 4> page_hashes_;  // per column, XXH3-64 of each page's values
};

// Does the same as check_shard() for a ShardIndex. `index_file`: the file from which `pages` was opened.
[[nodiscard]] Status check_shard(const RandomReader& shard, const IndexPages& pages, const RandomReader& index_file);

}  // namespace millrace::formats
