// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fast form of a byte-level BPE, for ids alone: takes the bytes of a word as they are, where CharBpe takes the
// characters that spell them. Immutable and thread-safe; a MergeScratch belongs to one thread.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/char_bpe.h"

namespace millrace::tokenizer {

class ByteBpe {
 public:
  // Nothing when `model` asks for more than bytes can tell: affixes, or another token for a byte that has none.
  // `model` must outlive the result.
  [[nodiscard]] static std::optional<ByteBpe> build(const CharBpe& model);

  // Appends the ids of `word`, any bytes. A byte that is no token by itself vanishes, as in `tokenizers`.
  void encode_word(std::string_view word, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  static constexpr size_t kShortWord = 48;

 private:
  ByteBpe(const CharBpe& model, Vocabulary words);
  void merge_short(std::string_view word, std::vector<uint32_t>& ids) const;
  void merge_long(std::string_view word, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

  const MergeTable* merges_;
  Vocabulary words_;  // tokens by the bytes that they stand for; empty unless merges are ignored for them
  std::array<uint32_t, 256> byte_tokens_;
  bool ignore_merges_;
};

}  // namespace millrace::tokenizer
