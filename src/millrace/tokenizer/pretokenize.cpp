// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/pretokenize.h"

#include <array>

#include "millrace/tokenizer/block_scan.h"
#include "millrace/tokenizer/unicode_tables.h"

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

// `classes` is code_point_classes(): a call would test its guard for every character.
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

template <class Pattern>
size_t scan(std::string_view piece, size_t begin, std::span<size_t> ends) {
  const uint8_t* const classes = code_point_classes();
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

// The same, 64 bytes at a time.
template <class Pattern, Grammar kGrammar>
size_t scan_in_blocks(std::string_view piece, size_t begin, std::span<size_t> ends) {
  static const BlockScan block_scan = find_block_scan(kGrammar);
  if (ends.size() < 64) return scan<Pattern>(piece, begin, ends);
  // SAFETY: uint8_t may alias any object.
  const auto base = reinterpret_cast<Byte>(piece.data());
  return block_scan(base, piece.size(), begin, Pattern::end_of_word, ends.data(), ends.size());
}

size_t scan_whole_piece(std::string_view piece, size_t begin, std::span<size_t> ends) {
  if (begin == piece.size()) return 0;
  ends[0] = piece.size();
  return 1;
}

using Scan = size_t (*)(std::string_view, size_t, std::span<size_t>);

template <class Pattern, Grammar kGrammar>
Scan best_scan() {
  return find_block_scan(kGrammar) != nullptr ? scan_in_blocks<Pattern, kGrammar> : scan<Pattern>;
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
};

}  // namespace

std::optional<Pretokenizer> Pretokenizer::find(std::string_view pattern) {
  for (const KnownPattern& known : kKnownPatterns)
    if (known.text == pattern) return Pretokenizer(known.find_scan());
  return std::nullopt;
}

}  // namespace millrace::tokenizer
