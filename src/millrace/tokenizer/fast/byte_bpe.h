// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fast form of a byte-level BPE, for ids only. It takes the bytes of a word directly, where CharBpe takes the
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
  // Returns nullopt if bytes are not enough for `model`: it has affixes, or replaces a byte that has no token by
  // another token. `model` must outlive the result.
  [[nodiscard]] static std::optional<ByteBpe> build(const CharBpe& model);

  // Appends the ids of `word`, which may hold any bytes and has the key `key`. Drops a byte that has no token of its
  // own, as `tokenizers` does.
  void encode_word(std::string_view word, const WordKey& key, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  // Does the same for many words. Their memory accesses overlap, which is 10-15 % faster than one word after another.
  void encode_words(std::span<WordRequest> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  static constexpr size_t kShortWord = MergeLane::kMaxSymbols;

 private:
  // Short words that are one token: tokens that no merge can take apart, or all tokens when merges are ignored. Most
  // words seen for the first time are among them.
  class WholeWords {
   public:
    void reserve(size_t words);
    void insert(const WordKey& key, uint32_t id);
    uint32_t find(const WordKey& key) const;
    void prefetch(const WordKey& key) const { slots_.prefetch(key.hash()); }

   private:
    // Small, because most look-ups fail. The words themselves are in words_.
    struct Slot {
      uint32_t tag;    // bits of the hash that do not choose the slot
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

  // The tokens that spell bytes, keyed by those bytes. Tokens without bytes are left out.
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

  // Facts about two adjacent bytes. A rank that is not certain has its top bit set.
  struct BytePair {
    uint32_t rank = kNoRank, joined = kNoToken;  // of the merge of the two bytes
    // The lowest rank of a merge of a token that ends with the first byte and the second byte alone.
    uint32_t least_left = kNoRank & ~kUnsure;
    // The lowest rank of a merge of the first byte alone and a token that begins with the second byte.
    uint32_t least_right = kNoRank & ~kUnsure;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX, kUnsure = uint32_t{1} << 31;

  const MergeTable* merges_;
  WholeWords whole_words_;
  // Longer tokens, by their bytes; empty unless merges are ignored for them. Numbered separately, because they are
  // few.
  Vocabulary long_words_;
  std::vector<uint32_t> long_word_ids_;
  std::array<uint32_t, 256> byte_tokens_;
  HugeVector<BytePair> byte_pairs_;   // [256 * left + right]
  HugeVector<uint32_t> token_sizes_;  // bytes of each token
  bool ignore_merges_;
  bool complete_ = false;  // each byte has a token
};

}  // namespace millrace::tokenizer
