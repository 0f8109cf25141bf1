// SPDX-License-Identifier: Apache-2.0
#pragma once

// A regular expression as a table: from the start of a match to its end in one pass, one look-up a character, with
// exactly the match that a backtracking engine finds. Immutable, thread-safe.
//
// A state of the table is an ordered list of the places in the expression where a backtracking engine could be, the one
// that it tries first in front. A place behind one that has matched is dropped, as the engine would never go back to
// it (Pike's simulation; leftmost-first of RE2 and of Rust's regex). What the next character must be is part of a
// transition, so the end of a match is known when the character behind it is read. What the previous one must be is
// part of the state. A look-ahead of several characters is a table of its own, which reads backwards, and its answer is
// part of what a transition reads.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

// What one pass over one text, from its begin to its end, remembers for a pattern that looks around.
class LookAroundMemory {
 public:
  void clear() {
    search_ = match_end_ = 0;
    last_end_.reset();
    ahead_.clear();
  }

 private:
  friend class PatternAutomaton;
  friend class AutomatonSteps;      // of the tests
  size_t search_ = 0;               // where the search for the next match begins
  std::optional<size_t> last_end_;  // of the last match
  size_t match_end_ = 0;            // of the match behind the last word that was given, if that was none
  std::vector<uint8_t> ahead_;      // of each place: which look-aheads hold there, and which are known to hold or not
};

class PatternAutomaton {
 public:
  // nullptr for what parse_regex() refuses, and what needs too large a table. `pattern`: as the tokenizer.json has it.
  static std::shared_ptr<const PatternAutomaton> compile(std::string_view pattern);

  // The characters for which `contains` is true; one is a match, or a run of them.
  static std::shared_ptr<const PatternAutomaton> of_characters(const std::function<bool(uint32_t)>& contains,
                                                               bool in_runs);

  // Whether each character begins a match, whatever follows it: no text lies between two matches.
  bool covers_all() const;
  // True: cutting a text into matches takes time linear in it, whatever it is. False: that is not known.
  bool is_linear() const;
  // The same pattern for text of which each byte stands for the character that spells it (byte_map.h).
  std::shared_ptr<const PatternAutomaton> over_spelled_bytes() const;

  // Whether a match depends on more than the text that it takes and the next character, or may be empty. Such a pattern
  // needs the whole text and the memory of one pass over it.
  bool looks_around() const { return looks_around_; }

  struct Match {
    size_t begin = 0, end = 0;
  };
  // The next match in `text`, nullopt when there is no other. An empty match right behind another one counts for
  // nothing. REQUIRES: looks_around().
  std::optional<Match> find_next(std::string_view text, LookAroundMemory& memory) const;

  // The end of the match that begins at `p`; nullptr when none does. REQUIRES: p < end; not looks_around().
  const uint8_t* match(const uint8_t* p, const uint8_t* end) const {
    return is_over_bytes_ ? match_of<true>(p, end) : match_of<false>(p, end);
  }
  // The first character at or behind `p` with which a match may begin, or `end`. REQUIRES: not looks_around().
  const uint8_t* find_start(const uint8_t* p, const uint8_t* end) const {
    return is_over_bytes_ ? find_start_of<true>(p, end) : find_start_of<false>(p, end);
  }

  // The ends of the matches that follow `begin` and of what lies between them, as WordScanner::next_words.
  size_t next_words(std::string_view piece, size_t begin, std::span<size_t> ends, LookAroundMemory& memory) const;

 private:
  friend class AutomatonBuilder;
  friend class AutomatonSteps;  // of the tests
  // Bits of an entry. kMatches: the text before this character is a match. kSkips: a to z keep the state.
  // kSkipsCapitals: so do A to Z. kAsks: look-aheads decide the entry. Above kRowShift: where the row of the next state
  // begins.
  static constexpr uint32_t kMatches = 1, kSkips = 2, kSkipsCapitals = 4, kAsks = 8, kRowShift = 4, kDead = 0xFFFFFFF0;

  // Whether what follows a place matches an expression. The table reads the text backwards.
  struct Ahead {
    std::vector<uint32_t> table;     // [state][class of the next character][kind of the previous one]: the row of the
                                     // state before the next character, twice, and whether it matches
    std::vector<uint8_t> kinds;      // of the previous character, by its class
    std::vector<uint8_t> goes_on;    // by the class of the next character: whether text behind it matters
    std::vector<uint8_t> may_match;  // by the class of the next character
  };
  static constexpr size_t kMostAheads = 4;

  template <bool kBytes>
  static CodePoint read(const uint8_t* p, const uint8_t* end) {
    return kBytes || *p < 0x80 ? CodePoint{*p, 1} : decode_code_point(p, end);
  }
  template <bool kBytes>
  const uint8_t* match_of(const uint8_t* p, const uint8_t* end) const {
    const uint8_t* matched = nullptr;
    const uint32_t* row = table_.data();
    while (p < end) {
      const CodePoint c = read<kBytes>(p, end);
      const uint32_t entry = row[classes_[c.value]];
      matched = entry & kMatches ? p : matched;
      if (entry >= kDead) return matched;
      row = table_.data() + (entry >> kRowShift);
      p += c.size;
      if (entry & kSkips) p = skip_letters(p, end, entry & kSkipsCapitals ? 0x20 : 0);
    }
    return row[end_class_] & kMatches ? end : matched;
  }
  template <bool kBytes>
  const uint8_t* find_start_of(const uint8_t* p, const uint8_t* end) const {
    while (p < end) {
      const CodePoint c = read<kBytes>(p, end);
      if (table_[classes_[c.value]] < kDead) break;
      p += c.size;
    }
    return p;
  }
  // Defined in look_around.cpp. `begins_search`: the search for this match began at `p`.
  template <bool kBytes>
  std::optional<Match> search(std::string_view text, LookAroundMemory& memory) const;
  template <bool kBytes>
  const uint8_t* match_around(const uint8_t* p, std::span<const uint8_t> text, bool begins_search,
                              LookAroundMemory& memory) const;
  template <bool kBytes>
  size_t conditions_at(const uint8_t* p, std::span<const uint8_t> text, bool begins_search,
                       LookAroundMemory& memory) const;
  template <bool kBytes>
  void look_ahead(size_t number, const uint8_t* p, std::span<const uint8_t> text, LookAroundMemory& memory) const;
  template <bool kBytes>
  size_t class_before(const uint8_t* p, const uint8_t* begin) const;
  size_t next_words_around(std::string_view piece, size_t begin, std::span<size_t> ends,
                           LookAroundMemory& memory) const;

  // Writes the ends of the plain words that begin with the space at `p` (see find_plain_words), as offsets from `base`,
  // and returns how many. REQUIRES: 64 bytes may be read, and `ends` has room for 63.
  size_t plain_words(const uint8_t* p, const uint8_t* base, size_t* ends) const;

  // Behind the letters a to z at `p`; `fold` is 0x20 for A to Z too.
  static const uint8_t* skip_letters(const uint8_t* p, const uint8_t* end, uint8_t fold);

  std::vector<uint8_t> classes_;  // of each code point, kCodePointTableSize; or of each byte
  std::vector<uint32_t> table_;   // [state][conditions that hold][class]; the first row is the start
  size_t width_ = 0;              // of a row
  size_t end_class_ = 0;          // of the end of the text; the last one
  bool looks_around_ = false;
  // Where it looks around
  std::vector<uint32_t> start_rows_;  // by the class of the character before the match; end_class_ at the begin
  std::vector<Ahead> aheads_;         // whether they match is condition 0, 1, ...
  size_t search_condition_ = 0;       // the bit of the condition that the search begins here; 0 without it
  bool is_over_bytes_ = false;
  bool has_plain_words_ = false;
  std::array<uint8_t, 2> marks_ = {
      ',', '.'};  // that stand alone between a plain word and a space; ' ' for one that does not
};

inline const uint8_t* PatternAutomaton::skip_letters(const uint8_t* p, const uint8_t* end, uint8_t fold) {
  const auto is_letter = [fold](uint8_t c) { return static_cast<uint8_t>((c | fold) - 'a') < 26; };
#if defined(__SSE2__)
  for (; end - p >= 16; p += 16) {
    // SAFETY: an unaligned load of bytes.
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(static_cast<char>(fold)));
    const __m128i places = _mm_sub_epi8(folded, _mm_set1_epi8('a'));
    const __m128i in_alphabet = _mm_cmpeq_epi8(_mm_min_epu8(places, _mm_set1_epi8(25)), places);
    const auto others = static_cast<uint32_t>(~_mm_movemask_epi8(in_alphabet)) & 0xFFFF;
    if (others != 0) return p + __builtin_ctz(others);
  }
#endif
  while (p < end && is_letter(*p)) ++p;
  return p;
}

}  // namespace millrace::tokenizer
