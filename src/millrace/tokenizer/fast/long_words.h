// SPDX-License-Identifier: Apache-2.0
#pragma once

// Merges words that are too long for a MergeLane, in windows that one lane can take. Takes linear time and stays in
// the processor's cache for any length; a queue over the whole word does neither. Not thread-safe.
//
// Why the result is exact: let the word be cut into tokens t1 t2 .. tn, so that for every two neighbours ti ti+1,
// merging their text alone gives just these two. Then merging the whole word gives t1 .. tn. Proof: otherwise, take
// the first merge of the whole word that crosses a border. It joins parts of some ti and ti+1. No earlier merge
// crossed their outer borders, so the text of the two was merged as it is alone: the lowest-ranked pair of the whole
// word, the leftmost of equals, is also that of the part that contains it. So merging the two alone would cross the
// border too, which contradicts the assumption. Neighbours from one window pass this test for the same reason. Where
// two windows meet, the code makes the test.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/tokenizer/fast/merge_lanes.h"

namespace millrace::tokenizer {

// A token of a long word. `end`: the number of symbols that it and the tokens before it were merged from.
struct LongToken {
  uint32_t id = 0;
  size_t end = 0;
  bool operator==(const LongToken&) const = default;
};

// The tokens of one part of a word.
struct MergeWindow {
  std::array<LongToken, MergeLane::kMaxSymbols> tokens;
  size_t count = 0;
  void add(LongToken token) { tokens[count++] = token; }
};

// Fills `tokens` with the tokens of a word of `symbols` symbols. encode(begin, size, window) adds the tokens of the
// part [begin, begin + size) to a window. Returns false if the windows do not meet, so that the word has to be merged
// as a whole.
template <class Encode>
bool merge_in_windows(size_t symbols, const Encode& encode, std::vector<LongToken>& tokens) {
  // The last tokens of a window usually differ from those of the whole word.
  constexpr size_t kUnsure = 2;
  constexpr size_t kPatience = 8;
  tokens.clear();
  size_t failures = 0;
  LongToken known;  // may follow the tokens so far, at `begin`
  const auto end_before = [&](size_t count) { return count == 0 ? size_t{0} : tokens[count - 1].end; };
  for (size_t begin = 0; begin < symbols;) {
    const size_t size = std::min(symbols - begin, MergeLane::kMaxSymbols);
    MergeWindow window;
    encode(begin, size, window);
    const LongToken first = window.tokens[0];
    const auto may_follow = [&] {
      const size_t both = end_before(tokens.size() - 1);
      if (first.end - both > MergeLane::kMaxSymbols) return false;
      MergeWindow pair;
      encode(both, first.end - both, pair);
      return pair.count == 2 && pair.tokens[0] == tokens.back() && pair.tokens[1] == first;
    };
    if (!tokens.empty() && first != known && !may_follow()) {
      if (++failures > kPatience + tokens.size() / 16) return false;
      tokens.pop_back();
      begin = end_before(tokens.size());
      known = {};
      continue;
    }
    const bool is_last = begin + size == symbols;
    if (!is_last && window.count <= kUnsure) return false;
    const size_t taken = is_last ? window.count : window.count - kUnsure;
    tokens.insert(tokens.end(), window.tokens.begin(), window.tokens.begin() + static_cast<ptrdiff_t>(taken));
    begin = tokens.back().end;
    if (!is_last) known = window.tokens[taken];
  }
  return true;
}

}  // namespace millrace::tokenizer
