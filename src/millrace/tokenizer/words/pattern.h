// SPDX-License-Identifier: Apache-2.0
#pragma once

// The pattern of a Split or Replace. Four engines give the same answers: a search for plain characters; the scanners
// of word_scanner.h and digit_groups.h for known expressions; the table of pattern_automaton.h if the expression fits
// one; otherwise Oniguruma, the engine of `tokenizers`. For Oniguruma, every \p{..}, \s, \w and \d is written out as
// ranges of our own tables, because its tables have another Unicode version. Immutable, thread-safe.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"

namespace millrace::tokenizer {

// Bytes [begin, end) of a text: a match, or the text between two matches.
struct Part {
  size_t begin = 0, end = 0;
  bool matched = false;
};

class Pattern {
 public:
  // Builds a pattern. Errors: invalid_argument (an invalid regular expression; the reason), unsupported (a construct
  // whose meaning depends on the engine's Unicode version).
  [[nodiscard]] static Result<Pattern> build(const PatternSpec& spec);
  // Builds a pattern that uses Oniguruma alone. The other engines must agree with it.
  [[nodiscard]] static Result<Pattern> build_with_oniguruma(std::string_view pattern);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Returns the engine's name for people: "text", "scanner", "table" or "Oniguruma".
  std::string_view engine() const;
  // Returns whether find_all is known to take time linear in the text, for any text.
  bool is_linear() const;

  // Appends the parts of `text`, which together cover it; matches may be empty. Appends nothing for an empty text.
  // Errors: resource_exhausted (the engine gave up, as it does in `tokenizers`).
  [[nodiscard]] Status find_all(std::string_view text, std::vector<Part>& parts) const;

 private:
  class Engine;
  class Literal;
  class Automaton;
  class Scanner;
  class DigitGroups;
  class Regex;
  explicit Pattern(std::unique_ptr<const Engine> engine);
  std::unique_ptr<const Engine> engine_;
};

struct ExpandedPattern {
  std::string text;                       // with its character classes written out
  std::vector<std::string> folded_sets;   // [..] under (?i), written out
  std::vector<std::string> negated_sets;  // [^..] inside another set, written out
};
// Writes the character classes of an expression out. Errors: unsupported.
[[nodiscard]] Result<ExpandedPattern> expand_classes(std::string_view pattern);
// Returns a letter that is in the set without its case partner, if older engines do not know that the two are
// partners.
std::optional<uint32_t> lone_young_letter(const std::function<bool(uint32_t)>& contains);

}  // namespace millrace::tokenizer
