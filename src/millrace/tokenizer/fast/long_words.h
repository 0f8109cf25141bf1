// SPDX-License-Identifier: Apache-2.0
#pragma once

// Merging of words that are too long for a MergeLane, in windows of what one lane takes: linear, and near the processor
// for any length, where a queue over the whole word is neither. Not thread-safe.
//
// Why it is exact: tokens t1 t2 .. tn are what merging makes of a word if each two neighbours ti ti+1 are what it makes
// of the text of those two alone. For let the first merge across a border join parts of ti and of ti+1. Until then
// nothing came over the borders of the two, so they were merged as they are alone: the pair of the lowest rank of the
// whole word, the leftmost of equals, is that of the part that it lies in. Then alone, too, a merge would cross the
// border. Neighbours that come out of one window pass that test, for the same reason; where two windows meet it is
// made.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/tokenizer/fast/merge_lanes.h"

namespace millrace::tokenizer {

// A token of a long word, and where it ends: how many symbols it and those before it were merged from.
struct LongToken {
  uint32_t id = 0;
  size_t end = 0;
  bool operator==(const LongToken&) const = default;
};

// The tokens of a part of a word.
struct MergeWindow {
  std::array<LongToken, MergeLane::kMaxSymbols> tokens;
  size_t count = 0;
  void add(LongToken token) { tokens[count++] = token; }
};

// Fills `tokens` with those of a word of `symbols` symbols. encode(begin, size, window) adds those of the part
// [begin, begin + size) to a window. False: the windows do not meet, the word has to be merged as a whole.
template <class Encode>
bool merge_in_windows(size_t symbols, const Encode& encode, std::vector<LongToken>& tokens) {
  // The last tokens of a window are not what they are in the whole word, most often.
  constexpr size_t kUnsure = 2;
  constexpr size_t kPatience = 8;
  tokens.clear();
  size_t failures = 0;
  LongToken known;  // at `begin` it may follow the tokens so far
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
