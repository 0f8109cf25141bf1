// SPDX-License-Identifier: Apache-2.0
#pragma once

// WordPiece for words without ASCII characters, few of whose characters begin longer tokens. A table of characters
// gives their ids faster than a cache of words, and learns nothing from the text. A vocabulary made from English text
// has mostly single characters of other scripts. Belongs to one encoder; not thread-safe.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/base/memory/huge_array.h"
#include "millrace/tokenizer/fast/plain_words.h"
#include "millrace/tokenizer/fast/word_cache.h"
#include "millrace/tokenizer/models/word_piece.h"

namespace millrace::tokenizer {

class CharacterWords final : public DirectWords {
 public:
  // `model`, `plain` and `normalizer` belong to one file and must outlive the CharacterWords.
  CharacterWords(const WordPiece& model, const PlainWords& plain, const Normalizer& normalizer);

  size_t encode(std::string_view unit, uint32_t* ids) override;

 private:
  // The piece that a character becomes: one of these values, or kFirstId plus the id of the token that is the
  // character.
  enum Piece : uint32_t { kNotAsked, kOther, kUnknown, kFirstId };
  struct Character {
    uint32_t first, next;  // pieces at the beginning of a word, and after other tokens
    uint64_t longer;       // WordPiece::Beginning::longer, after other tokens
  };

  const Character& character(uint32_t c) { return characters_[c].first == kNotAsked ? ask(c) : characters_[c]; }
  const Character& ask(uint32_t c);
  bool are_plain(std::string_view text);

  const WordPiece& model_;
  const PlainWords& plain_;
  const Normalizer& normalizer_;
  PlainWords::Scratch scratch_;
  HugeArray<Character> characters_;  // by code point, below U+10000
};

}  // namespace millrace::tokenizer
