// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a Split or Replace looks for. Four engines give the same answers: a search for plain characters, the scanners of
// word_scanner.h and digit_groups.h where the expression is a known one, the table of pattern_automaton.h where it can
// be one, and else Oniguruma, the engine of `tokenizers`, with every \p{..}, \s, \w and \d written out as the ranges of
// our own tables, since its tables are of another Unicode version. Immutable, thread-safe.

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

// Bytes [begin, end) of a text: a match, or what lies between two.
struct Part {
  size_t begin = 0, end = 0;
  bool matched = false;
};

class Pattern {
 public:
  // Errors: invalid_argument (no regular expression; the reason), unsupported (a construct whose meaning depends on the
  // engine's Unicode version).
  [[nodiscard]] static Result<Pattern> build(const PatternSpec& spec);
  // The same by the engine alone, which the other ways must agree with.
  [[nodiscard]] static Result<Pattern> build_with_oniguruma(std::string_view pattern);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // For people: "text", "scanner", "table" or "Oniguruma".
  std::string_view engine() const;
  // Whether the time that find_all takes is known to be linear in the text, whatever that is.
  bool is_linear() const;

  // Appends the parts of `text`; together they cover it, matches may be empty. Nothing for an empty text.
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
// Errors: unsupported.
[[nodiscard]] Result<ExpandedPattern> expand_classes(std::string_view pattern);
// A letter that is in a set without its partner, of those that older engines do not know to be partners.
std::optional<uint32_t> lone_young_letter(const std::function<bool(uint32_t)>& contains);

}  // namespace millrace::tokenizer
