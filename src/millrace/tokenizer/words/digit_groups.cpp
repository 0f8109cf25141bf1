// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/digit_groups.h"

#include <cstdint>
#include <vector>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

using Byte = const uint8_t*;

constexpr uint8_t kDigit = 1, kWord = 2;
constexpr size_t kGroup = 3;

const uint8_t* digit_table() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> flags(kCodePointTableSize);
    const auto add = [&](std::string_view property, uint8_t flag) {
      for (const CodePointRange& range : property_ranges(property))
        for (uint32_t c = range.first; c <= range.last; ++c) flags[c] |= flag;
    };
    add("d", kDigit);
    add("w", kWord);
    return flags;
  }();
  return table.data();
}

class GroupScan {
 public:
  GroupScan(std::string_view text, size_t begin)
      // SAFETY: uint8_t may alias any object.
      : begin_(reinterpret_cast<Byte>(text.data())), end_(begin_ + text.size()), p_(begin_ + begin) {
    // Only the first group of a run is shorter than the others, and a run of which none is a match is never cut.
    is_inside_ = begin > 0 && is(p_, kDigit) && is(previous_character(begin_, p_), kDigit);
  }

  bool at_end() const { return p_ == end_; }
  size_t position() const { return static_cast<size_t>(p_ - begin_); }

  // Goes behind the next match, or behind what lies before it; whether it was a match. REQUIRES: not at_end().
  bool next() {
    if (is_inside_) {
      take(kGroup);
      return true;
    }
    const Byte from = p_;
    while (p_ < end_) {
      if (!is(p_, kDigit)) {
        ++p_;  // the other bytes of a character begin none with a digit's value
        while (p_ < end_ && (*p_ & 0xC0) == 0x80) ++p_;
        continue;
      }
      const Byte run = p_;
      const size_t digits = skip_run();
      if (is(p_, kWord)) continue;  // no \b behind the run: nothing in it is a match
      p_ = run;
      if (from != run) return false;
      take((digits - 1) % kGroup + 1);
      return true;
    }
    return false;
  }

 private:
  bool is(Byte p, uint8_t flag) const {
    return p < end_ && (table_[*p < 0x80 ? *p : decode_code_point(p, end_).value] & flag) != 0;
  }
  void step() { p_ += *p_ < 0x80 ? 1 : decode_code_point(p_, end_).size; }
  size_t skip_run() {
    size_t digits = 0;
    for (; is(p_, kDigit); ++digits) step();
    return digits;
  }
  void take(size_t digits) {
    for (size_t i = 0; i < digits && p_ < end_; ++i) step();
    is_inside_ = is(p_, kDigit);
  }

  const uint8_t* const table_ = digit_table();
  const Byte begin_, end_;
  Byte p_;
  bool is_inside_ = false;  // of a run, behind a group of it
};

}  // namespace

size_t next_digit_groups(std::string_view piece, size_t begin, std::span<size_t> ends) {
  GroupScan scan(piece, begin);
  size_t count = 0;
  while (!scan.at_end() && count < ends.size()) {
    scan.next();
    ends[count++] = scan.position();
  }
  return count;
}

void for_each_digit_group(std::string_view text, const std::function<void(size_t, size_t, bool)>& part) {
  GroupScan scan(text, 0);
  while (!scan.at_end()) {
    const size_t begin = scan.position();
    const bool matched = scan.next();
    part(begin, scan.position(), matched);
  }
}

}  // namespace millrace::tokenizer
