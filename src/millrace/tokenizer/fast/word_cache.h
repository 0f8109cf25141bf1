// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ids of words that one encoder has seen. Text repeats itself, so most words cost one look-up. The tables grow
// with the words up to 16 MiB each; then a new word replaces another. Ids that do not fit into the tables, and the
// bytes of long words, take up to 24 MiB more, in two halves. When one half is full, the words in the other half,
// which are older, are dropped. Pages that no word has touched use no memory. Not thread-safe.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/base/memory/huge_array.h"
#include "millrace/tokenizer/fast/short_words.h"
#include "millrace/tokenizer/fast/word_key.h"
#include "millrace/tokenizer/fast/word_table.h"

namespace millrace::tokenizer {

// A word that the cache does not have. Its ids are ids[first, first + count) of those that a WordModel appended.
struct WordRequest {
  std::string_view word;
  WordKey key;
  uint32_t first = 0, count = 0;
};

// Computes long words that begin with a character beyond ASCII, if that is faster than a look-up.
class DirectWords {
 public:
  static constexpr size_t kMostIds = 32;

  virtual ~DirectWords() = default;
  // Writes the ids of `word` and returns their number; 0: not such a word. `ids` has room for kMostIds.
  virtual size_t encode(std::string_view word, uint32_t* ids) = 0;
};

class WordCache {
 public:
  using Found = std::array<PackedIds, WordBatch::kMost>;

  // `direct`, if any, must outlive the cache.
  explicit WordCache(DirectWords* direct = nullptr)
      : direct_(direct),
        arena_(make_huge_array<uint32_t>(kArenaIds + WordBatch::kMost * DirectWords::kMostIds, Pages::kSmall)) {}

  // Looks up all `words`, or computes them with `direct`. Computed ids are valid until the next call.
  void find(const WordBatch& words, Found& found) const;

  bool contains(const WordRequest& word) const;
  // Returns the ids of an entry that are not inline; valid until the next insert.
  std::span<const uint32_t> stored_ids(PackedIds ids) const { return {arena_.get() + ids.place(), ids.count()}; }
  // Inserts a word. REQUIRES: the word is not in the cache.
  void insert(const WordRequest& word, std::span<const uint32_t> ids);

 private:
  static constexpr size_t kArenaIds = size_t{6} << 20;
  static constexpr size_t kLongestWord = 256;  // longer words hardly repeat
  static constexpr size_t kMostIds = 4096;     // for one word in the cache

  struct LongSlot {
    WordKey key;
    PackedIds ids;
    uint64_t place;  // place in the arena of the word's bytes, if the word is not its own key
    bool is_empty() const { return key.high == 0; }
    uint64_t hash() const { return key.hash(); }
  };
  static_assert(sizeof(LongSlot) == 32);

  PackedIds find_long(const LongSlot* line, const WordKey& key, std::string_view word) const;
  void start_half();

  DirectWords* direct_;
  ShortTable short_;
  WordTable<LongSlot> long_;
  HugeArray<uint32_t> arena_;  // ids, then a long word's bytes; after them the ids that direct_ wrote
  static constexpr size_t kHalf = kArenaIds / 2;
  size_t half_ = 0;       // beginning of the half that is filled now: 0 or kHalf
  size_t half_used_ = 0;  // used part of that half
};

}  // namespace millrace::tokenizer
