// SPDX-License-Identifier: Apache-2.0
#pragma once

// The regular expressions that pre-tokenizers really use, as a tree: alternatives of sequences of character sets with
// quantifiers, literals under (?i), and conditions on what stands before and behind a place. Private to this folder.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

using CodePointRanges = std::vector<CodePointRange>;  // ascending, apart from each other

struct RegexTree {
  enum class Kind : uint8_t {
    kSet,       // one character of `set`
    kSequence,  // `parts`, one after another
    kChoice,    // the first of `parts` that lets the rest match
    kRepeat,    // parts[0], `least` to `most` times
    // Conditions, which take no character.
    kNextIs,         // a character of `set` follows
    kNextIsNot,      // another character follows, or the text ends
    kPreviousIs,     // a character of `set` stands before
    kPreviousIsNot,  // another character stands before, or the text begins
    kAhead,          // parts[0] matches what follows
    kAheadNot,       // parts[0] does not match what follows
    kSearchBegins,   // the engine began to search here: where the last match ends
  };
  static constexpr int kNoLimit = -1;

  Kind kind = Kind::kSequence;
  CodePointRanges set;
  std::vector<RegexTree> parts;
  int least = 0, most = 0;  // kNoLimit: any number
  bool is_lazy = false;     // fewer repetitions are tried first
};

// Reads what expand_classes() wrote. nullopt for an expression with anything else in it, or where the answer of
// Oniguruma might differ: back references, look-behind of several characters, a look-ahead in another one, sets under
// (?i) of letters beyond ASCII, negated sets in others, letters that fold to several, loops around what may be empty,
// possessive quantifiers of more than one character, atomic groups that could give something back, `.*` behind a
// condition at the begin.
std::optional<RegexTree> parse_regex(std::string_view expanded);

// Whether it may match without a character.
bool may_be_empty(const RegexTree& tree);
// Whether it is made of conditions alone.
bool takes_nothing(const RegexTree& tree);

}  // namespace millrace::tokenizer
