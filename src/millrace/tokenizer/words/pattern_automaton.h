// SPDX-License-Identifier: Apache-2.0
#pragma once

// A regular expression as a table. It goes from the start of a match to its end in one pass, with one look-up per
// character, and finds exactly the match that a backtracking engine finds. Immutable, thread-safe.
//
// A state of the table is an ordered list of the places in the expression where a backtracking engine could be; the
// place that the engine tries first comes first. A place after one that has matched is dropped, as the engine would
// never go back to it (Pike's simulation; leftmost-first of RE2 and of Rust's regex). Conditions on the next character
// are part of a transition, so the end of a match is known when the character after it is read. Conditions on the
// previous character are part of the state. A look-ahead of several characters has a separate table, which reads
// backwards; a transition reads its answer too.

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

// The memory of one pass over one text, from beginning to end, for a pattern that looks around.
class LookAroundMemory {
 public:
  void clear() {
    search_ = match_end_ = 0;
    last_end_.reset();
    ahead_.clear();
  }

 private:
  friend class PatternAutomaton;
  friend class AutomatonSteps;      // for tests
  size_t search_ = 0;               // start of the search for the next match
  std::optional<size_t> last_end_;  // end of the last match
  size_t match_end_ = 0;            // end of the match after the last returned word, if that word was not a match
  std::vector<uint8_t> ahead_;      // for each place: which look-aheads hold there, and for which this is known
};

class PatternAutomaton {
 public:
  // Compiles `pattern`, written as in the tokenizer.json. Returns nullptr if parse_regex() refuses it or the table
  // would be too large.
  static std::shared_ptr<const PatternAutomaton> compile(std::string_view pattern);

  // Returns a pattern that matches a character for which `contains` is true, or a run of such characters with
  // `in_runs`.
  static std::shared_ptr<const PatternAutomaton> of_characters(const std::function<bool(uint32_t)>& contains,
                                                               bool in_runs);

  // Returns whether each character begins a match, whatever follows it, so that there is no text between two matches.
  bool covers_all() const;
  // Returns whether cutting any text into matches is known to take linear time.
  bool is_linear() const;
  // Returns the same pattern for text in which each byte means the character that spells it (byte_map.h).
  std::shared_ptr<const PatternAutomaton> over_spelled_bytes() const;

  // Returns whether a match depends on more than its own text and the next character, or may be empty. Such a pattern
  // needs the whole text and the memory of one pass over it.
  bool looks_around() const { return looks_around_; }

  struct Match {
    size_t begin = 0, end = 0;
  };
  // Returns the next match in `text`; nullopt if there is none. Skips an empty match directly after another match.
  // REQUIRES: looks_around().
  std::optional<Match> find_next(std::string_view text, LookAroundMemory& memory) const;

  // Returns the end of the match that begins at `p`; nullptr if none does. REQUIRES: p < end; not looks_around().
  const uint8_t* match(const uint8_t* p, const uint8_t* end) const {
    return is_over_bytes_ ? match_of<true>(p, end) : match_of<false>(p, end);
  }
  // Returns the first character at or after `p` that a match may begin with, or `end`. REQUIRES: not looks_around().
  const uint8_t* find_start(const uint8_t* p, const uint8_t* end) const {
    return is_over_bytes_ ? find_start_of<true>(p, end) : find_start_of<false>(p, end);
  }

  // Writes the ends of the matches that follow `begin` and of the text between them, as WordScanner::next_words does.
  size_t next_words(std::string_view piece, size_t begin, std::span<size_t> ends, LookAroundMemory& memory) const;

 private:
  friend class AutomatonBuilder;
  friend class AutomatonSteps;  // for tests
  // The bits of an entry. kMatches: the text before this character is a match. kSkips: a to z keep the state.
  // kSkipsCapitals: A to Z keep it too. kAsks: look-aheads decide the entry. The bits above kRowShift hold the start
  // of the next state's row.
  static constexpr uint32_t kMatches = 1, kSkips = 2, kSkipsCapitals = 4, kAsks = 8, kRowShift = 4, kDead = 0xFFFFFFF0;

  // Answers whether the text after a place matches an expression. The table reads the text backwards.
  struct Ahead {
    // [state][class of the next character][kind of the previous one]: twice the row of the state before the next
    // character, plus 1 if the expression matches.
    std::vector<uint32_t> table;
    std::vector<uint8_t> kinds;      // kind of the previous character, by its class
    std::vector<uint8_t> goes_on;    // by the class of the next character: whether text after it matters
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

  // Writes the ends of the plain words that begin with the space at `p` (see find_plain_words), as offsets from
  // `base`, and returns their number. REQUIRES: 64 bytes may be read, and `ends` has room for 63.
  size_t plain_words(const uint8_t* p, const uint8_t* base, size_t* ends) const;

  // Returns the place after the letters a to z at `p`. With `fold` 0x20, skips A to Z too.
  static const uint8_t* skip_letters(const uint8_t* p, const uint8_t* end, uint8_t fold);

  std::vector<uint8_t> classes_;  // by code point, kCodePointTableSize entries; or by byte
  std::vector<uint32_t> table_;   // [state][conditions that hold][class]; the first row is the start
  size_t width_ = 0;              // length of a row
  size_t end_class_ = 0;          // class of the end of the text; the last one
  bool looks_around_ = false;
  // Used if looks_around_.
  std::vector<uint32_t> start_rows_;  // by the class of the character before the match; at the beginning end_class_
  std::vector<Ahead> aheads_;         // condition i: the look-ahead aheads_[i] matches
  size_t search_condition_ = 0;       // bit of the condition that the search begins here; 0: not used
  bool is_over_bytes_ = false;
  bool has_plain_words_ = false;
  // Marks that are words by themselves between a plain word and a space; ' ': not such a mark.
  std::array<uint8_t, 2> marks_ = {',', '.'};
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
