// SPDX-License-Identifier: Apache-2.0
#pragma once

// A BPE of SentencePiece's form, for ids only. Takes units of raw text, in which a space means the model's U+2581, and
// merges many of them at once, where CharBpe takes one normalized word after another. Immutable and thread-safe; a
// MergeScratch belongs to one thread.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/fast/merge_lanes.h"
#include "millrace/tokenizer/models/char_bpe.h"

namespace millrace::tokenizer {

class UnitBpe {
 public:
  // Returns nullopt if `model` needs more: affixes, whole words, unknown characters that vanish, or bytes for only
  // some unknown characters. `model` must outlive the result.
  [[nodiscard]] static std::unique_ptr<const UnitBpe> build(const CharBpe& model);

  // Appends the ids of all `requests`, and stores in each request which ids are its own.
  void encode_words(std::span<WordRequest> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  // Returns the token of a character as it appears in text; kNoToken if it is not in the vocabulary.
  uint32_t token_of(uint32_t code_point) const;
  // Returns whether adjacent unknown characters become one token. Then units must not end between them.
  bool fuses_unknown() const { return fuses_unknown_; }

 private:
  explicit UnitBpe(const CharBpe& model);
  template <class Add>
  void for_each_symbol(std::string_view unit, const Add& add) const;
  bool start(MergeLane& lane, std::string_view unit) const;
  bool merge_windows(std::span<const uint32_t> symbols, std::vector<uint32_t>& ids) const;
  void merge_long(std::string_view unit, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  const CharBpe* model_;
  std::array<uint32_t, 128> ascii_tokens_;
  std::vector<uint64_t> ascii_merges_;  // [128 * left + right]: the value of MergeTable for their tokens
  std::vector<uint32_t> tokens_;        // by character, below U+10000
  bool fuses_unknown_;
};

}  // namespace millrace::tokenizer
