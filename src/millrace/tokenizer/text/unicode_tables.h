// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a code point is to the regular expressions, pre-tokenizers and normalizers of `tokenizers`. The tables are
// generated from that package (the .cpp files say which version), so that they agree with it by construction. Every
// function takes any value below kCodePointTableSize. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace millrace::tokenizer {

// The low two bits of an entry: \p{L}, \p{N}, \s or none of them.
inline constexpr uint8_t kOtherClass = 0;
inline constexpr uint8_t kLetterClass = 1;
inline constexpr uint8_t kNumberClass = 2;
inline constexpr uint8_t kSpaceClass = 3;
inline constexpr uint8_t kClassMask = 3;
// Beside an added token: \w (single_word) and \s (lstrip, rstrip).
inline constexpr uint8_t kWordFlag = 4;
inline constexpr uint8_t kWhiteFlag = 8;

// Four bytes that start with 0xF4 decode to less than this, well-formed or not, so no decoded value needs a check.
inline constexpr size_t kCodePointTableSize = 0x140000;

// kCodePointTableSize entries, one for each code point. Built on the first call.
const uint8_t* code_point_classes();
// The same with \p{M} among the letters.
const uint8_t* classes_with_marks();

// The same with the case of letters, and \p{M} told apart: kCapitalFlag for Lu and Lt, kSmallFlag for Ll.
inline constexpr uint8_t kCapitalFlag = 16;
inline constexpr uint8_t kSmallFlag = 32;
inline constexpr uint8_t kMarkFlag = 64;
const uint8_t* classes_with_case();

struct CodePointRange {
  uint32_t first, last;
};

// What the pre-tokenizers Digits, Punctuation (and BertPreTokenizer) and WhitespaceSplit look for; Strip takes white
// space too.
bool is_numeric(uint32_t c);
bool is_punctuation(uint32_t c);
bool is_white_space(uint32_t c);

// BertNormalizer: what clean_text drops, what it makes a space, what handle_chinese_chars puts spaces around, and what
// strip_accents drops of decomposed text.
bool is_bert_removed(uint32_t c);
bool is_bert_white_space(uint32_t c);
bool is_bert_chinese(uint32_t c);
bool is_nonspacing_mark(uint32_t c);
// Whether StripAccents drops it.
bool is_combining_mark(uint32_t c);

// The lower case of `c`, one or two characters; returns how many.
int to_lower(uint32_t c, uint32_t out[2]);

// The number that UnicodeScripts has for the script of `c`; kAnyScript goes with any script.
inline constexpr uint8_t kAnyScript = 0;
uint8_t script_of(uint32_t c);

// What `c` is where grapheme clusters are told apart, as the crate behind Precompiled has it. Regional indicators are
// kOther: with anything else their clusters are longer than a precompiled map looks at.
enum class ClusterClass : uint8_t {
  kOther,
  kControl,     // CR and LF too
  kExtend,      // Grapheme_Cluster_Break=Extend and Indic_Conjunct_Break=Extend
  kExtendOnly,  // the former alone
  kLinker,      // Indic_Conjunct_Break=Linker, Extend as well
  kSpacingMark,
  kJoiner,  // U+200D
  kPrepend,
  kPictographic,
  kConsonant,  // Indic_Conjunct_Break=Consonant
  kLead,       // of Hangul: L, V, T, LV, LVT
  kVowel,
  kTrail,
  kLeadVowel,
  kSyllable,
};
ClusterClass cluster_class(uint32_t c);
// Whether a cluster goes on with `c` whatever is before it, and with whatever follows it; control characters apart.
bool extends_cluster(uint32_t c);
inline bool prepends_cluster(uint32_t c) {
  return cluster_class(c) == ClusterClass::kPrepend;
}

// The code points of a property of regular expressions: a general category ("Lu", "L", "Letter"), a script ("Han",
// "Hani"), a property of POSIX ("Alpha"), or one of "s", "w", "d" and "h" for \s, \w, \d and \h. Names as in \p{..};
// letter case, spaces, '-' and '_' do not count. Surrogates are left out: no text has them. Empty: not known.
std::span<const CodePointRange> property_ranges(std::string_view name);
// \w inside a set: some numbers are word characters only where it stands alone.
std::span<const CodePointRange> word_ranges_in_set();

// One character at a place in a text, as the tables see it.
struct CodePoint {
  uint32_t value;
  uint32_t size;  // bytes, at least 1
};

// The character that starts at `p`. Bytes that are not UTF-8 give some value below kCodePointTableSize and never a size
// past `end`. REQUIRES: p < end.
inline CodePoint decode_code_point(const uint8_t* p, const uint8_t* end) {
  const uint32_t lead = *p;
  const auto tail = [p](size_t i) { return static_cast<uint32_t>(p[i] & 0x3F); };
  const size_t left = static_cast<size_t>(end - p);
  if (lead >= 0xC0 && lead < 0xE0 && left >= 2) return {(lead & 0x1F) << 6 | tail(1), 2};
  if (lead >= 0xE0 && lead < 0xF0 && left >= 3) return {(lead & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  if (lead >= 0xF0 && lead < 0xF5 && left >= 4)
    return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
  return {lead, 1};
}

// Start of the character that ends before `p`. REQUIRES: begin < p.
inline const uint8_t* previous_character(const uint8_t* begin, const uint8_t* p) {
  --p;
  for (int i = 0; i < 3 && p > begin && (*p & 0xC0) == 0x80; ++i) --p;
  return p;
}

}  // namespace millrace::tokenizer
