// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/word_scanner.h"

#include <array>

#include "millrace/tokenizer/text/unicode_tables.h"
#include "millrace/tokenizer/words/digit_groups.h"

// Every scanner below is a function from the start of a word to its end. The alternatives of a pattern are tried in
// order, as the engine does; what makes them cheap is that the classes \p{L}, \p{N}, \s and "other" are disjoint, so
// that the class of the first character and of the next one decide which alternative can match, and a greedy run never
// has to give back more than one character (a white space run does, and is looked at from its end).

namespace millrace::tokenizer {
namespace {

using Byte = const uint8_t*;

struct Character {
  uint8_t kind;  // kLetterClass, ...
  uint32_t size;
};

constexpr std::array<uint8_t, 128> make_ascii_classes() {
  std::array<uint8_t, 128> classes{};
  for (size_t c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    classes[c] = letter ? kLetterClass : c >= '0' && c <= '9' ? kNumberClass : space ? kSpaceClass : kOtherClass;
  }
  return classes;
}
constexpr std::array<uint8_t, 128> kAsciiClasses = make_ascii_classes();

// `classes` is code_point_classes() or classes_with_marks(): a call would test its guard for every character.
inline Character read_character(Byte p, Byte end, const uint8_t* classes) {
  if (*p < 0x80) return {kAsciiClasses[*p], 1};
  const CodePoint c = decode_code_point(p, end);
  return {static_cast<uint8_t>(classes[c.value] & kClassMask), c.size};
}

template <uint8_t kKind>
inline Byte skip_run(Byte p, Byte end, const uint8_t* classes) {
  while (p < end) {
    const Character c = read_character(p, end, classes);
    if (c.kind != kKind) break;
    p += c.size;
  }
  return p;
}

inline bool is_newline(uint8_t c) {
  return c == '\r' || c == '\n';
}

// \s+(?!\S)|\s+ on the run [p, run_end): all of it at the end of the piece, else all but its last character, which the
// next word may want; that character alone when there is no other.
inline Byte end_of_spaces(Byte p, Byte run_end, Byte end) {
  if (run_end == end) return run_end;
  const Byte last = previous_character(p, run_end);
  return last == p ? run_end : last;
}

// 's|'t|'re|'ve|'m|'ll|'d, in lower case. nullptr when it does not match. REQUIRES: *p == '\''.
inline Byte end_of_contraction(Byte p, Byte end) {
  const size_t left = static_cast<size_t>(end - p);
  if (left < 2) return nullptr;
  switch (p[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return left >= 3 && p[2] == 'e' ? p + 3 : nullptr;
    case 'l':
      return left >= 3 && p[2] == 'l' ? p + 3 : nullptr;
    default:
      return nullptr;
  }
}

// The same under (?i:...): either case, and U+017F, which folds to s.
inline Byte end_of_contraction_any_case(Byte p, Byte end) {
  const size_t left = static_cast<size_t>(end - p);
  if (left >= 3 && p[1] == 0xC5 && p[2] == 0xBF) return p + 3;
  const auto lower = [](uint8_t c) { return static_cast<uint8_t>(c >= 'A' && c <= 'Z' ? c | 0x20 : c); };
  const uint8_t folded[3] = {'\'', left >= 2 ? lower(p[1]) : uint8_t{0}, left >= 3 ? lower(p[2]) : uint8_t{0}};
  const Byte match = end_of_contraction(folded, folded + 3);
  return match == nullptr ? nullptr : p + (match - folded);
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
struct Gpt2 {
  static Byte end_of_word(Byte p, Byte end, const uint8_t* classes) {
    if (*p == '\'')
      if (const Byte match = end_of_contraction(p, end)) return match;
    Byte next = p;
    Character c = read_character(p, end, classes);
    if (*p == ' ' && end - p > 1) {
      next = p + 1;
      c = read_character(next, end, classes);
    }
    switch (c.kind) {
      case kLetterClass:
        return skip_run<kLetterClass>(next + c.size, end, classes);
      case kNumberClass:
        return skip_run<kNumberClass>(next + c.size, end, classes);
      case kOtherClass:
        return skip_run<kOtherClass>(next + c.size, end, classes);
      default:
        return end_of_spaces(p, skip_run<kSpaceClass>(next + c.size, end, classes), end);
    }
  }
};

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with kMaxDigits for the 3.
template <int kMaxDigits>
struct Llama3 {
  static Byte end_of_word(Byte p, Byte end, const uint8_t* classes) {
    const Character first = read_character(p, end, classes);
    Byte next = p + first.size;
    if (first.kind == kLetterClass) return skip_run<kLetterClass>(next, end, classes);
    if (first.kind == kNumberClass) return end_of_digits(next, end, classes);
    if (*p == '\'')
      if (const Byte match = end_of_contraction_any_case(p, end)) return match;
    if (next < end && !is_newline(*p)) {
      const Character second = read_character(next, end, classes);
      if (second.kind == kLetterClass) return skip_run<kLetterClass>(next + second.size, end, classes);
      if (*p == ' ' && second.kind == kOtherClass) return end_of_symbols(next + second.size, end, classes);
    }
    if (first.kind == kOtherClass) return end_of_symbols(next, end, classes);
    return end_of_white_space(p, skip_run<kSpaceClass>(next, end, classes), end);
  }

 private:
  static Byte end_of_digits(Byte p, Byte end, const uint8_t* classes) {
    for (int digits = 1; digits < kMaxDigits && p < end; ++digits) {
      const Character c = read_character(p, end, classes);
      if (c.kind != kNumberClass) break;
      p += c.size;
    }
    return p;
  }
  static Byte end_of_symbols(Byte p, Byte end, const uint8_t* classes) {
    p = skip_run<kOtherClass>(p, end, classes);
    while (p < end && is_newline(*p)) ++p;
    return p;
  }
  // \s*[\r\n]+ takes the run up to its last newline.
  static Byte end_of_white_space(Byte p, Byte run_end, Byte end) {
    for (Byte q = run_end; q > p; --q)
      if (is_newline(q[-1])) return q;
    return end_of_spaces(p, run_end, end);
  }
};

using Classes = const uint8_t* (*)();

template <class Pattern, Classes kClasses>
size_t scan(std::string_view piece, size_t begin, std::span<size_t> ends) {
  const uint8_t* const classes = kClasses();
  // SAFETY: uint8_t may alias any object.
  const auto base = reinterpret_cast<Byte>(piece.data());
  const Byte end = base + piece.size();
  Byte p = base + begin;
  size_t count = 0;
  while (p < end && count < ends.size()) {
    p = Pattern::end_of_word(p, end, classes);
    ends[count++] = static_cast<size_t>(p - base);
  }
  return count;
}

template <class Pattern>
Byte end_of_word(Byte p, Byte end, const void* classes) {
  return Pattern::end_of_word(p, end, static_cast<const uint8_t*>(classes));
}

// The same, 64 bytes at a time.
template <class Pattern, Grammar kGrammar, Classes kClasses>
size_t scan_in_blocks(std::string_view piece, size_t begin, std::span<size_t> ends) {
  static const BlockScan block_scan = find_block_scan(kGrammar);
  if (ends.size() < 64) return scan<Pattern, kClasses>(piece, begin, ends);
  // SAFETY: uint8_t may alias any object.
  const auto base = reinterpret_cast<Byte>(piece.data());
  const uint8_t* const classes = kClasses();
  return block_scan(base, piece.size(), begin, {end_of_word<Pattern>, classes, classes}, ends.data(), ends.size());
}

size_t scan_whole_piece(std::string_view piece, size_t begin, std::span<size_t> ends) {
  if (begin == piece.size()) return 0;
  ends[0] = piece.size();
  return 1;
}

using Scan = size_t (*)(std::string_view, size_t, std::span<size_t>);

template <class Pattern, Grammar kGrammar, Classes kClasses = code_point_classes>
Scan best_scan() {
  return find_block_scan(kGrammar) != nullptr ? scan_in_blocks<Pattern, kGrammar, kClasses> : scan<Pattern, kClasses>;
}
Scan whole_piece() {
  return scan_whole_piece;
}

struct KnownPattern {
  std::string_view text;
  Scan (*find_scan)();
};
constexpr KnownPattern kKnownPatterns[] = {
    {"", whole_piece},
    {kByteLevelPattern, best_scan<Gpt2, Grammar::kGpt2>},
    // Llama 3, and with it the cl100k files on the Hugging Face Hub.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     best_scan<Llama3<3>, Grammar::kLlama3>},
    // Qwen 2.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     best_scan<Llama3<1>, Grammar::kQwen2>},
    // Qwen 3.5: marks are in words. One before letters may be a word's first character either way.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     best_scan<Llama3<1>, Grammar::kQwen2, classes_with_marks>},
};

// Patterns whose words blocks find, and the table where they can't. Each character begins a match of theirs.
// GPT-4o, gpt-oss, Llama 4.
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Mistral's since Nemo.
constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                     R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::optional<Grammar> grammar_of(std::string_view pattern) {
  if (pattern == kO200k) return Grammar::kO200k;
  if (pattern == kTekken) return Grammar::kTekken;
  return std::nullopt;
}

}  // namespace

std::optional<WordScanner> WordScanner::find_scanner(std::string_view pattern) {
  for (const KnownPattern& known : kKnownPatterns)
    if (known.text == pattern) return WordScanner(known.find_scan());
  return std::nullopt;
}

std::optional<WordScanner> WordScanner::find(std::string_view pattern) {
  if (auto scanner = find_scanner(pattern)) return scanner;
  if (pattern == kDigitGroupsPattern) return WordScanner(next_digit_groups, true);
  auto automaton = PatternAutomaton::compile(pattern);
  if (automaton == nullptr) return std::nullopt;
  WordScanner words(std::move(automaton));
  if (const auto grammar = grammar_of(pattern)) words.blocks_ = find_block_scan(*grammar);
  return words;
}

size_t WordScanner::next_words(std::string_view piece, size_t begin, std::span<size_t> ends,
                               LookAroundMemory& memory) const {
  if (automaton_ == nullptr) return scan_(piece, begin, ends);
  if (blocks_ == nullptr || ends.size() < 64) return automaton_->next_words(piece, begin, ends, memory);
  const auto end_of_match = [](Byte p, Byte end, const void* automaton) {
    const Byte matched = static_cast<const PatternAutomaton*>(automaton)->match(p, end);
    return matched == nullptr ? end : matched;  // bytes that are no UTF-8
  };
  // SAFETY: uint8_t may alias any object.
  return blocks_(reinterpret_cast<Byte>(piece.data()), piece.size(), begin,
                 {end_of_match, automaton_.get(), classes_with_case()}, ends.data(), ends.size());
}

bool is_split_at(const CharacterSplitSpec& spec, uint32_t c) {
  switch (spec.kind) {
    case CharacterKind::kWhiteSpace:
      return is_white_space(c);
    case CharacterKind::kPunctuation:
      return is_punctuation(c);
    case CharacterKind::kNumeric:
      return is_numeric(c);
    case CharacterKind::kOne:
      return c == spec.character;
  }
  return false;
}

namespace {

// The pattern of a step that makes each match a word.
std::shared_ptr<const PatternAutomaton> automaton_of(const CharacterSplitSpec& spec) {
  if (spec.behavior != SplitBehavior::kIsolated && spec.behavior != SplitBehavior::kContiguous) return nullptr;
  return PatternAutomaton::of_characters([&](uint32_t c) { return is_split_at(spec, c); },
                                         spec.behavior == SplitBehavior::kContiguous);
}

}  // namespace

namespace {

// The expression that matches `text` alone.
std::string escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(R"(\.*?+^$|()[]{})").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Result<WordScanner> known_words(std::string_view pattern) {
  if (auto words = WordScanner::find(pattern)) return std::move(*words);
  return fail(ErrorCode::kUnsupported, "only Oniguruma knows the regular expression {}", pattern);
}

}  // namespace

// What one step cuts by.
struct WordScannerChain::Step {
  Result<WordScanner> operator()(const SplitSpec& split) const {
    // What is matched and what is not are words alike; what is not goes, if it is nothing.
    const bool keeps_matches = split.behavior == SplitBehavior::kRemoved && split.invert;
    if (split.pattern.text.empty() || (split.behavior != SplitBehavior::kIsolated && !keeps_matches))
      return fail(ErrorCode::kUnsupported, "a Split that does not isolate");
    ASSIGN_OR_RETURN(WordScanner words,
                     words_of(split.pattern.is_regex ? split.pattern.text : escaped(split.pattern.text)));
    if (keeps_matches && !words.covers_all())
      return fail(ErrorCode::kUnsupported, "a Split that removes what lies between matches");
    return words;
  }
  Result<WordScanner> words_of(const std::string& pattern) const {
    if (!is_spelled) return known_words(pattern);
    if (const auto automaton = PatternAutomaton::compile(pattern)) return WordScanner(automaton->over_spelled_bytes());
    return fail(ErrorCode::kUnsupported, "only Oniguruma knows the regular expression {}", pattern);
  }
  Result<WordScanner> operator()(const CharacterSplitSpec& characters) const {
    if (auto automaton = automaton_of(characters))
      return WordScanner(is_spelled ? automaton->over_spelled_bytes() : std::move(automaton));
    return fail(ErrorCode::kUnsupported, "a split at characters that does not isolate them");
  }
  Result<WordScanner> operator()(const ByteLevelSpec& bytes) const {
    if (is_spelled || (bytes.add_prefix_space && !is_last))
      return fail(ErrorCode::kUnsupported, "a ByteLevel that changes the text of other steps");
    return known_words(bytes.use_regex ? kByteLevelPattern : "");
  }
  template <class Other>
  Result<WordScanner> operator()(const Other&) const {
    return fail(ErrorCode::kUnsupported, "a pre-tokenizer that does more than cut");
  }
  bool is_last;
  bool is_spelled;  // a ByteLevel comes before it
};

Result<WordScannerChain> WordScannerChain::build(std::span<const PreTokenizerSpec> steps) {
  if (steps.empty() || steps.size() > kMost)
    return fail(ErrorCode::kUnsupported, "{} pre-tokenizers; 1 to {} are chained", steps.size(), kMost);
  WordScannerChain chain;
  bool is_spelled = false;
  for (const PreTokenizerSpec& step : steps) {
    ASSIGN_OR_RETURN(WordScanner level, std::visit(Step{&step == &steps.back(), is_spelled}, step));
    const auto* const bytes = std::get_if<ByteLevelSpec>(&step);
    is_spelled |= bytes != nullptr;
    if (chain.levels_.empty() || bytes == nullptr || bytes->use_regex) chain.levels_.push_back(std::move(level));
  }
  return chain;
}

// The next ends of words of one level, in the word of the level before it.
size_t WordScannerChain::Cursor::cut(size_t level, std::span<size_t> ends) {
  const WordScanner& words = chain_.levels_[level];
  const size_t begin = words.looks_back() ? begins_of_words_[level] : 0;
  const std::string_view word = piece_.substr(begin, ends_of_words_[level] - begin);
  const size_t count = words.next_words(word, at_ - begin, ends, memories_[level]);
  if (begin > 0)
    for (size_t& end : ends.first(count)) end += begin;
  return count;
}

size_t WordScannerChain::Cursor::next(std::span<size_t> ends) {
  const size_t last = chain_.levels_.size() - 1;
  size_t count = 0;
  while (count < ends.size() && at_ < piece_.size()) {
    size_t level = last;
    while (ends_of_words_[level] <= at_ && level > 0) --level;
    for (; level < last; ++level) {
      cut(level, {&ends_of_words_[level + 1], 1});
      begins_of_words_[level + 1] = at_;
      if (chain_.levels_[level + 1].looks_back()) memories_[level + 1].clear();
    }
    count += cut(last, ends.subspan(count));
    at_ = ends[count - 1];
    if (ends.size() - count < kFewest && count > kFewest) break;  // blocks need room
  }
  return count;
}

}  // namespace millrace::tokenizer
