// SPDX-License-Identifier: Apache-2.0
#pragma once

// The units way, for ids alone: raw text is cut into units whose ids, one unit after another, are those of the whole
// text, so that units that were met before cost one look-up. Which cuts are right follows from the steps of the file; a
// file of whose steps that is not proven has no UnitPath. The proofs are beside the rules in unit_path.cpp. Immutable,
// thread-safe.

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
  // How the first unit of a piece differs.
  enum class Start {
    kNothing,
    kSpace,                  // a space is put before it
    kSpaceUnlessThere,       // the same, but not before a space or its replacement
    kSpaceUnlessThereFirst,  // the same, in the piece that begins the text only
    kGeneral,                // it takes the general way
  };
  // nullopt for a file of another shape. `model` must outlive the result.
  [[nodiscard]] static std::optional<UnitPath> build(const TokenizerSpec& spec, const Model& model);

  // True when one of the added tokens with normalized = true may be in `text`: it is normalized as a whole then.
  bool may_have_added_token(std::string_view text) const;

  UnitScanner scanner;
  Start start = Start::kNothing;
  std::optional<PlainWords> plain;     // finds the words of most units that take the general way
  std::unique_ptr<const UnitBpe> bpe;  // null: units take the general way
  const WordPiece* pieces = nullptr;   // the model, if it is one and `plain` finds words
  TokenMatcher cores;                  // text that an added token of the second pass has in it, raw and normalized
  std::vector<uint8_t> kinds;          // of the characters below U+10000, where they depend on the file
};

// A letter that is a grapheme cluster by itself, unless another character extends it, and no neighbour of which a
// normal form or a precompiled map looks at. REQUIRES: 0x80 <= c < 0x10000.
bool is_lone_letter(uint32_t c);

// How many kinds of characters the UnitScanner of a file with words between white space knows.
inline constexpr uint32_t kWordKinds = UnitScanner::kFirstKind + 6;

// The symbol for a space in such files, U+2581.
inline constexpr std::string_view kMetaSymbol = "\u2581";

}  // namespace millrace::tokenizer
