// SPDX-License-Identifier: Apache-2.0
#pragma once

// The path by units, for ids only. Raw text is cut into units whose ids, one unit after another, are the ids of the
// whole text. So a repeated unit costs one look-up. The steps of the file decide which cuts are right; a file whose
// steps have no proof gets no UnitPath. The proofs are beside the rules in unit_path.cpp. Immutable, thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/fast/plain_words.h"
#include "millrace/tokenizer/fast/unit_bpe.h"
#include "millrace/tokenizer/fast/unit_scanner.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/models/model.h"
#include "millrace/tokenizer/models/word_piece.h"
#include "millrace/tokenizer/steps/added_tokens.h"

namespace millrace::tokenizer {

struct UnitPath {
  // How the first unit of a piece is treated.
  enum class Start {
    kNothing,
    kSpace,                  // a space is put before it
    kSpaceUnlessThere,       // a space is put before it, unless it begins with a space or its replacement
    kSpaceUnlessThereFirst,  // the same, only in the piece that begins the text
    kGeneral,                // it takes the general path
  };
  // Returns nullopt if the file has another form. `model` must outlive the result.
  [[nodiscard]] static std::optional<UnitPath> build(const TokenizerSpec& spec, const Model& model);

  // Returns whether `text` may contain an added token with normalized = true. Then it is normalized as a whole.
  bool may_have_added_token(std::string_view text) const;

  UnitScanner scanner;
  Start start = Start::kNothing;
  std::optional<PlainWords> plain;     // finds the words of most units that take the general path
  std::unique_ptr<const UnitBpe> bpe;  // null: units take the general path
  const WordPiece* pieces = nullptr;   // the model, if it is a WordPiece and `plain` finds words
  // For each added token of the second pass, a text that is in both its raw and its normalized form.
  TokenMatcher cores;
  std::vector<uint8_t> kinds;  // kinds of the characters below U+10000, if they depend on the file
};

// Returns whether `c` is a letter that forms a grapheme cluster by itself unless another character extends it, and
// that no normal form or precompiled map joins with a neighbour. REQUIRES: 0x80 <= c < 0x10000.
bool is_lone_letter(uint32_t c);

// Number of character kinds in the UnitScanner of a file with words between white space.
inline constexpr uint32_t kWordKinds = UnitScanner::kFirstKind + 6;

// The symbol for a space in such files, U+2581.
inline constexpr std::string_view kMetaSymbol = "\u2581";

}  // namespace millrace::tokenizer
