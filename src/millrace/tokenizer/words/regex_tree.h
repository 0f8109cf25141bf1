// SPDX-License-Identifier: Apache-2.0
#pragma once

// The regular expressions that pre-tokenizers really use, as a tree: alternatives of sequences of character sets with
// quantifiers, literals under (?i), and a look at the next character. Private to this folder.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

using CodePointRanges = std::vector<CodePointRange>;  // ascending, apart from each other

struct RegexTree {
  enum class Kind : uint8_t {
    kSet,        // one character of `set`
    kSequence,   // `parts`, one after another
    kChoice,     // the first of `parts` that lets the rest match
    kRepeat,     // parts[0], `least` to `most` times
    kNextIs,     // what follows is a character of `set`: takes none
    kNextIsNot,  // what follows is no character of `set`, or the end of the text: takes none
  };
  static constexpr int kNoLimit = -1;

  Kind kind = Kind::kSequence;
  CodePointRanges set;
  std::vector<RegexTree> parts;
  int least = 0, most = 0;  // kNoLimit: any number
  bool is_lazy = false;     // fewer repetitions are tried first
};

// Reads what expand_classes() wrote. nullopt for an expression with anything else in it, or where the answer of
// Oniguruma might differ: back references, look-behind, anchors other than $, sets under (?i) that are not of ASCII
// letters, negated sets in others, letters that fold to several, loops around what may be empty, possessive quantifiers
// of more than one character.
std::optional<RegexTree> parse_regex(std::string_view expanded);

// Whether it may match without a character.
bool may_be_empty(const RegexTree& tree);

}  // namespace millrace::tokenizer
