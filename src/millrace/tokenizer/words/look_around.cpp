// SPDX-License-Identifier: Apache-2.0
// How a table finds matches where its expression looks around: conditions on the character before the match, on text
// behind it, on where the search began, and matches that are empty.
#include "millrace/tokenizer/words/pattern_automaton.h"

namespace millrace::tokenizer {
namespace {

// The flag of a place in LookAroundMemory: look-ahead i is known to match there.
constexpr uint8_t matches_flag(size_t i) {
  return static_cast<uint8_t>(1 << i);
}
constexpr uint8_t known_flag(size_t i) {
  return static_cast<uint8_t>(0x10 << i);
}

template <bool kBytes>
const uint8_t* step_back(const uint8_t* p, const uint8_t* begin) {
  return kBytes ? p - 1 : previous_character(begin, p);
}

}  // namespace

template <bool kBytes>
size_t PatternAutomaton::class_before(const uint8_t* p, const uint8_t* begin) const {
  if (p == begin) return end_class_;
  return classes_[read<kBytes>(step_back<kBytes>(p, begin), p).value];
}

// Answers for the whole run of characters around `p` behind which the text matters, from the end of the run to its
// begin, so that each run is read once.
template <bool kBytes>
void PatternAutomaton::look_ahead(size_t number, const uint8_t* p, std::span<const uint8_t> text,
                                  LookAroundMemory& memory) const {
  const Ahead& ahead = aheads_[number];
  const uint8_t* const begin = text.data();
  const uint8_t* const end = begin + text.size();
  const uint8_t* at = p;
  size_t next = end_class_;
  for (; at < end; next = end_class_) {
    const CodePoint c = read<kBytes>(at, end);
    next = classes_[c.value];
    if (!ahead.goes_on[next]) break;
    at += c.size;
  }
  for (uint32_t row = 0;;) {
    const size_t before = class_before<kBytes>(at, begin);
    const uint32_t entry = ahead.table[row + next + (end_class_ + 1) * ahead.kinds[before]];
    uint8_t& flags = memory.ahead_[static_cast<size_t>(at - begin)];
    flags |= known_flag(number);
    if (entry & 1) flags |= matches_flag(number);
    if (!ahead.goes_on[before]) return;
    row = entry >> 1;
    next = before;
    at = step_back<kBytes>(at, begin);
  }
}

// The conditions that hold at `p`, a bit each.
template <bool kBytes>
size_t PatternAutomaton::conditions_at(const uint8_t* p, std::span<const uint8_t> text, bool begins_search,
                                       LookAroundMemory& memory) const {
  size_t conditions = begins_search ? search_condition_ : 0;
  if (memory.ahead_.empty() && !aheads_.empty()) memory.ahead_.resize(text.size() + 1);
  for (size_t i = 0; i < aheads_.size(); ++i) {
    const uint8_t& flags = memory.ahead_[static_cast<size_t>(p - text.data())];
    if ((flags & known_flag(i)) == 0) look_ahead<kBytes>(i, p, text, memory);
    if (flags & matches_flag(i)) conditions |= size_t{1} << i;
  }
  return conditions;
}

template <bool kBytes>
const uint8_t* PatternAutomaton::match_around(const uint8_t* p, std::span<const uint8_t> text, bool begins_search,
                                              LookAroundMemory& memory) const {
  const uint8_t* const end = text.data() + text.size();
  const uint8_t* matched = nullptr;
  const uint32_t* row = table_.data() + start_rows_[class_before<kBytes>(p, text.data())];
  for (;;) {
    const CodePoint c = p < end ? read<kBytes>(p, end) : CodePoint{0, 0};
    const size_t next = p < end ? classes_[c.value] : end_class_;
    uint32_t entry = row[next];
    if (entry & kAsks) entry = row[next + (end_class_ + 1) * conditions_at<kBytes>(p, text, begins_search, memory)];
    matched = entry & kMatches ? p : matched;
    if (p == end || entry >= kDead) return matched;
    begins_search = false;
    row = table_.data() + (entry >> kRowShift);
    p += c.size;
    if (entry & kSkips) p = skip_letters(p, end, entry & kSkipsCapitals ? 0x20 : 0);
  }
}

// The first match that begins at memory.search_ or behind it.
template <bool kBytes>
std::optional<PatternAutomaton::Match> PatternAutomaton::search(std::string_view text, LookAroundMemory& memory) const {
  // SAFETY: uint8_t may alias any object.
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const uint8_t* const begin = bytes.data();
  const uint8_t* const end = begin + bytes.size();
  const uint8_t* const from = begin + memory.search_;
  const uint8_t* p = from;
  size_t before = class_before<kBytes>(p, begin);
  while (p < end) {
    const CodePoint c = read<kBytes>(p, end);
    const size_t next = classes_[c.value];
    if (table_[start_rows_[before] + next] != kDead)
      if (const uint8_t* const matched = match_around<kBytes>(p, bytes, p == from, memory))
        return Match{static_cast<size_t>(p - begin), static_cast<size_t>(matched - begin)};
    before = next;
    p += c.size;
  }
  if (match_around<kBytes>(end, bytes, from == end, memory) == nullptr) return std::nullopt;
  return Match{text.size(), text.size()};
}

std::optional<PatternAutomaton::Match> PatternAutomaton::find_next(std::string_view text,
                                                                   LookAroundMemory& memory) const {
  while (memory.search_ <= text.size()) {
    const auto found = is_over_bytes_ ? search<true>(text, memory) : search<false>(text, memory);
    if (!found) {
      memory.search_ = text.size() + 1;
      break;
    }
    if (found->begin == found->end && memory.last_end_ == found->end) {
      // SAFETY: uint8_t may alias any object.
      const auto at = reinterpret_cast<const uint8_t*>(text.data()) + memory.search_;
      const size_t left = text.size() - memory.search_;
      memory.search_ += is_over_bytes_ || left == 0 ? 1 : decode_code_point(at, at + left).size;
      continue;
    }
    memory.search_ = found->end;
    memory.last_end_ = found->end;
    return found;
  }
  return std::nullopt;
}

size_t PatternAutomaton::next_words_around(std::string_view piece, size_t begin, std::span<size_t> ends,
                                           LookAroundMemory& memory) const {
  size_t count = 0;
  while (begin < piece.size() && count < ends.size()) {
    if (memory.match_end_ <= begin) {
      const auto found = find_next(piece, memory);
      memory.match_end_ = found ? found->end : piece.size();
      const size_t gap_end = found ? found->begin : piece.size();
      if (gap_end == begin) continue;
      begin = gap_end;
    } else {
      begin = memory.match_end_;
    }
    ends[count++] = begin;
  }
  return count;
}

}  // namespace millrace::tokenizer
