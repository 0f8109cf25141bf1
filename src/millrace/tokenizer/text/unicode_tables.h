// SPDX-License-Identifier: Apache-2.0
#pragma once

// The properties of code points for the regular expressions, pre-tokenizers and normalizers of `tokenizers`. The
// tables are generated from that package (the .cpp files name the version), so they agree with it by construction.
// Every function takes any value below kCodePointTableSize. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace millrace::tokenizer {

// The low two bits of an entry: \p{L}, \p{N}, \s or none of these.
inline constexpr uint8_t kOtherClass = 0;
inline constexpr uint8_t kLetterClass = 1;
inline constexpr uint8_t kNumberClass = 2;
inline constexpr uint8_t kSpaceClass = 3;
inline constexpr uint8_t kClassMask = 3;
// The classes of characters next to an added token: \w (for single_word) and \s (for lstrip, rstrip).
inline constexpr uint8_t kWordFlag = 4;
inline constexpr uint8_t kWhiteFlag = 8;

// Four bytes that start with 0xF4 decode to less than this, well-formed or not, so no decoded value needs a check.
inline constexpr size_t kCodePointTableSize = 0x140000;

// Returns kCodePointTableSize entries, one for each code point. Built on the first call.
const uint8_t* code_point_classes();
// Returns the same table with \p{M} counted as letters.
const uint8_t* classes_with_marks();

// Returns the same table with the case of letters, and with \p{M} separate: kCapitalFlag for Lu and Lt, kSmallFlag for
// Ll, kMarkFlag for \p{M}.
inline constexpr uint8_t kCapitalFlag = 16;
inline constexpr uint8_t kSmallFlag = 32;
inline constexpr uint8_t kMarkFlag = 64;
const uint8_t* classes_with_case();

struct CodePointRange {
  uint32_t first, last;
};

// The characters at which the pre-tokenizers Digits, Punctuation (and BertPreTokenizer) and WhitespaceSplit cut. Strip
// removes white space too.
bool is_numeric(uint32_t c);
bool is_punctuation(uint32_t c);
bool is_white_space(uint32_t c);

// The characters that BertNormalizer drops for clean_text, turns into spaces, surrounds by spaces for
// handle_chinese_chars, and drops from decomposed text for strip_accents.
bool is_bert_removed(uint32_t c);
bool is_bert_white_space(uint32_t c);
bool is_bert_chinese(uint32_t c);
bool is_nonspacing_mark(uint32_t c);
// Returns whether StripAccents drops `c`.
bool is_combining_mark(uint32_t c);

// Writes the lower case of `c`, one or two characters, and returns their number.
int to_lower(uint32_t c, uint32_t out[2]);

// Returns the number that UnicodeScripts has for the script of `c`. kAnyScript fits any script.
inline constexpr uint8_t kAnyScript = 0;
uint8_t script_of(uint32_t c);

// The role of `c` in grapheme clusters, as in the crate behind Precompiled. Regional indicators are kOther: with any
// other character, their clusters are longer than a precompiled map handles.
enum class ClusterClass : uint8_t {
  kOther,
  kControl,     // including CR and LF
  kExtend,      // Grapheme_Cluster_Break=Extend and Indic_Conjunct_Break=Extend
  kExtendOnly,  // Grapheme_Cluster_Break=Extend alone
  kLinker,      // Indic_Conjunct_Break=Linker, which is Extend as well
  kSpacingMark,
  kJoiner,  // U+200D
  kPrepend,
  kPictographic,
  kConsonant,  // Indic_Conjunct_Break=Consonant
  kLead,       // Hangul syllable types: L, V, T, LV, LVT
  kVowel,
  kTrail,
  kLeadVowel,
  kSyllable,
};
ClusterClass cluster_class(uint32_t c);
// Return whether a cluster goes on with `c` whatever precedes it, or with any character after `c`; except for control
// characters.
bool extends_cluster(uint32_t c);
inline bool prepends_cluster(uint32_t c) {
  return cluster_class(c) == ClusterClass::kPrepend;
}

// Returns the code points of a property of regular expressions: a general category ("Lu", "L", "Letter"), a script
// ("Han", "Hani"), a property of POSIX ("Alpha"), or one of "s", "w", "d" and "h" for \s, \w, \d and \h. Names are as
// in \p{..}; letter case, spaces, '-' and '_' do not matter. Surrogates are left out, because no text has them. Empty:
// unknown.
std::span<const CodePointRange> property_ranges(std::string_view name);
// Returns \w inside a set. Some numbers count as word characters only when \w is outside a set.
std::span<const CodePointRange> word_ranges_in_set();

// A character of a text and its size.
struct CodePoint {
  uint32_t value;
  uint32_t size;  // bytes, at least 1
};

// Decodes the character that starts at `p`. Bytes that are not UTF-8 give some value below kCodePointTableSize and
// never a size past `end`. REQUIRES: p < end.
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

// Returns the start of the character that ends before `p`. REQUIRES: begin < p.
inline const uint8_t* previous_character(const uint8_t* begin, const uint8_t* p) {
  --p;
  for (int i = 0; i < 3 && p > begin && (*p & 0xC0) == 0x80; ++i) --p;
  return p;
}

}  // namespace millrace::tokenizer
