// SPDX-License-Identifier: Apache-2.0
#pragma once

// The BPE of SentencePiece's shape, for ids alone: takes units of raw text, in which a space is U+2581 to the model,
// and merges many of them at once, where CharBpe takes one normalized word after another. Immutable and thread-safe; a
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
  // nullopt when `model` needs more: affixes, whole words, unknown characters that vanish, or bytes only for some of
  // them. `model` must outlive the result.
  [[nodiscard]] static std::unique_ptr<const UnitBpe> build(const CharBpe& model);

  // Appends the ids of all `requests` and says in each which they are.
  void encode_words(std::span<WordRequest> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  // The token of a character as text has it, kNoToken when it is not in the vocabulary.
  uint32_t token_of(uint32_t code_point) const;
  // Unknown characters side by side become one token: units must not end between them.
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
  std::vector<uint64_t> ascii_merges_;  // [128 * left + right]: what MergeTable has for their tokens
  std::vector<uint32_t> tokens_;        // of the characters below U+10000
  bool fuses_unknown_;
};

}  // namespace millrace::tokenizer
