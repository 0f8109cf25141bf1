// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fast form of a byte-level BPE, for ids alone: takes the bytes of a word as they are, where CharBpe takes the
// characters that spell them. Immutable and thread-safe; a MergeScratch belongs to one thread.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/memory/huge_array.h"
#include "millrace/base/probe_table.h"
#include "millrace/tokenizer/fast/merge_lanes.h"
#include "millrace/tokenizer/models/char_bpe.h"

namespace millrace::tokenizer {

class ByteBpe {
 public:
  // nullopt when bytes do not suffice for `model`: affixes, or another token for a byte that has none.
  // `model` must outlive the result.
  [[nodiscard]] static std::optional<ByteBpe> build(const CharBpe& model);

  // Appends the ids of `word`, any bytes, whose key is `key`. A byte that is no token by itself vanishes, as in
  // `tokenizers`.
  void encode_word(std::string_view word, const WordKey& key, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  // The same for many words, which keep memory busy together: 10-15 % faster than one after another.
  void encode_words(std::span<WordRequest> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  static constexpr size_t kShortWord = MergeLane::kMaxSymbols;

 private:
  // Short words that are one token: all that no merge can take apart, or all tokens when merges are ignored. Most words
  // that are met for the first time are among them.
  class WholeWords {
   public:
    void reserve(size_t words);
    void insert(const WordKey& key, uint32_t id);
    uint32_t find(const WordKey& key) const;
    void prefetch(const WordKey& key) const { slots_.prefetch(key.hash()); }

   private:
    // Small, since most look-ups fail: the words themselves are stored elsewhere.
    struct Slot {
      uint32_t tag;    // bits of the hash that don't choose the slot
      uint32_t place;  // 1 + index in words_; 0: empty
      bool is_empty() const { return place == 0; }
    };
    struct Word {
      WordKey key;
      uint32_t id;
    };
    static uint32_t tag(const WordKey& key) { return static_cast<uint32_t>(key.hash()); }
    HugeVector<Word> words_;
    ProbeTable<Slot> slots_;
  };

  // The tokens that spell bytes, by those, of which each has one at least.
  struct TokenBytes {
    explicit TokenBytes(const Vocabulary& spelled);
    HugeArray<char> bytes;
    const char* readable_end;
    VocabularySpec tokens;
  };

  explicit ByteBpe(const CharBpe& model);
  void find_byte_pairs(const TokenBytes& tokens, size_t id_limit);
  void find_whole_words(const TokenBytes& tokens);
  void find_sizes(const TokenBytes& tokens, size_t id_limit);
  uint32_t find_whole_word(std::string_view word, const WordKey& key) const;
  void start(MergeLane& lane, std::string_view word) const;
  void merge_short(std::string_view word, std::vector<uint32_t>& ids) const;
  void merge_long(std::string_view word, MergeScratch& scratch, std::vector<uint32_t>& ids) const;
  bool merge_windows(std::string_view word, std::vector<uint32_t>& ids) const;

  // Facts about two neighbouring bytes. The upper bit of a rank that is not sure is set.
  struct BytePair {
    uint32_t rank = kNoRank, joined = kNoToken;  // of the merge of the two
    uint32_t least_left = kNoRank & ~kUnsure;    // rank of the merges of what ends with the first and the second alone
    uint32_t least_right = kNoRank & ~kUnsure;  // rank of the merges of the first alone and what begins with the second
  };
  static constexpr uint32_t kNoRank = UINT32_MAX, kUnsure = uint32_t{1} << 31;

  const MergeTable* merges_;
  WholeWords whole_words_;
  // Longer tokens, by their bytes; none unless merges are ignored for them. Numbered by themselves: they are few.
  Vocabulary long_words_;
  std::vector<uint32_t> long_word_ids_;
  std::array<uint32_t, 256> byte_tokens_;
  HugeVector<BytePair> byte_pairs_;   // [256 * left + right]
  HugeVector<uint32_t> token_sizes_;  // bytes of each token
  bool ignore_merges_;
  bool complete_ = false;  // each byte has a token
};

}  // namespace millrace::tokenizer
