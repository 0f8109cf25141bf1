// SPDX-License-Identifier: Apache-2.0
#pragma once

// Byte-level byte pair encoding of one word by a merge list: among the neighbours that have a merge, the one of the
// lowest rank is joined, the leftmost of equals, until none is left. A Bpe is immutable and thread-safe; a Scratch
// belongs to one thread. Another model would have the same encode_word.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/tokenizer_json.h"
#include "millrace/tokenizer/vocabulary.h"

namespace millrace::tokenizer {

// (left id, right id) -> (rank, id of the joined token), open addressing.
class MergeTable {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  explicit MergeTable(size_t merges);
  // A pair that is there already takes the new rank, as in `tokenizers`.
  void insert(uint32_t left, uint32_t right, uint32_t rank, uint32_t joined);
  // rank << 32 | joined id, or kNone.
  uint64_t find(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (size_t i = first_slot(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].value;
      if (slots_[i].key == kNone) return kNone;
    }
  }

 private:
  struct Slot {
    uint64_t key = kNone;  // ids are below kNoToken, so no pair is kNone
    uint64_t value = kNone;
  };
  size_t first_slot(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_;
  int shift_;
};

class Bpe {
 public:
  // The memory that long words need, kept between calls.
  struct Scratch {
    std::vector<uint32_t> ids, previous, next;
    std::vector<uint64_t> merges, queue;
  };

  // Errors: invalid_argument (a merge of tokens that do not exist), unsupported (vocabulary.h; a vocabulary that needs
  // out_of_vocabulary_rule).
  [[nodiscard]] static Result<Bpe> build(const BpeSpec& spec);

  // Appends the ids of `word`, any bytes. A byte that is no token by itself vanishes, as in `tokenizers`. Linear times
  // a logarithm; about 28 bytes of scratch memory for each byte of a word that is longer than kShortWord.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<uint32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

  static constexpr size_t kShortWord = 48;

 private:
  Bpe(Vocabulary vocabulary, MergeTable merges, bool ignore_merges);
  [[nodiscard]] Status insert_merges(const BpeSpec& spec);
  void merge_short(std::string_view word, std::vector<uint32_t>& ids) const;
  void merge_long(std::string_view word, Scratch& scratch, std::vector<uint32_t>& ids) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::array<uint32_t, 256> byte_tokens_;
  bool ignore_merges_;
};

}  // namespace millrace::tokenizer
