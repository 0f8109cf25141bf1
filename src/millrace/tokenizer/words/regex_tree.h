// SPDX-License-Identifier: Apache-2.0
#pragma once

// A parser for the regular expressions that pre-tokenizers really use. The tree has alternatives of sequences of
// character sets with quantifiers, literals under (?i), and conditions on the text before and after a place. Private
// to this folder.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

using CodePointRanges = std::vector<CodePointRange>;  // ascending, not adjacent

struct RegexTree {
  enum class Kind : uint8_t {
    kSet,       // one character of `set`
    kSequence,  // `parts`, one after another
    kChoice,    // the first of `parts` with which the rest matches
    kRepeat,    // parts[0], `least` to `most` times
    // Conditions, which consume no character.
    kNextIs,         // a character of `set` follows
    kNextIsNot,      // another character follows, or the text ends
    kPreviousIs,     // a character of `set` precedes
    kPreviousIsNot,  // another character precedes, or the text begins
    kAhead,          // parts[0] matches the text that follows
    kAheadNot,       // parts[0] does not match the text that follows
    kSearchBegins,   // the engine's search began here: at the end of the last match
  };
  static constexpr int kNoLimit = -1;

  Kind kind = Kind::kSequence;
  CodePointRanges set;
  std::vector<RegexTree> parts;
  int least = 0, most = 0;  // kNoLimit: any number
  bool is_lazy = false;     // fewer repetitions are tried first
};

// Parses the output of expand_classes(). Returns nullopt for an expression with anything else in it, or if the answer
// of Oniguruma might differ: back references, look-behind of several characters, a look-ahead in another one, sets
// under (?i) of letters beyond ASCII, negated sets in others, letters that fold to several, loops around an expression
// that may be empty, possessive quantifiers of more than one character, atomic groups that could give something back,
// `.*` after a condition at the beginning.
std::optional<RegexTree> parse_regex(std::string_view expanded);

// Returns whether the tree may match without a character.
bool may_be_empty(const RegexTree& tree);
// Returns whether the tree consists of conditions alone.
bool takes_nothing(const RegexTree& tree);

}  // namespace millrace::tokenizer
