// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/unit_scanner.h"

#include <algorithm>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

void UnitScanner::use_blocks(uint32_t kinds, UnitBlockScan scan) {
  blocks_ = nullptr;
  const auto cut_of = [&](uint32_t left, uint32_t right) { return cuts_[left * kRow + right]; };
  for (uint32_t kind = 0; kind < kinds; ++kind) {
    const bool is_alone = cut_of(kind, kind) == kCut;
    classes_.of_kind[kind] = cut_of(' ', kind) == kNone ? UnitClasses::kWhite : is_alone ? UnitClasses::kAlone : 0;
  }
  const auto expected = [&](uint32_t left, uint32_t right) {
    const uint8_t a = classes_.of_kind[left], b = classes_.of_kind[right];
    if (b == UnitClasses::kWhite) return a == b ? kNone : kCut;
    if (a == UnitClasses::kWhite) return kDrop;
    return (a | b) == 0 ? kNone : kCut;
  };
  for (uint32_t left = 0; left < kinds; ++left)
    for (uint32_t right = 0; right < kinds; ++right)
      if (cut_of(left, right) != expected(left, right)) return;
  classes_.complete(*this);
  blocks_ = scan;
}

size_t UnitScanner::next_units(std::string_view piece, size_t begin, std::span<CachedWords::Bounds> units) const {
  // Where a block finds no end of a unit, a few are looked for one by one.
  constexpr size_t kPatience = 4;
  if (blocks_ == nullptr || units.size() < 64) return next_units_one_by_one(piece, begin, units);
  const size_t count = blocks_(*this, piece, begin, units);
  return count > 0 ? count : next_units_one_by_one(piece, begin, units.first(kPatience));
}

// ASCII characters side by side, most of all text, are looked up without a branch for each.
size_t UnitScanner::next_units_one_by_one(std::string_view piece, size_t begin,
                                          std::span<CachedWords::Bounds> units) const {
  if (begin >= piece.size()) return 0;
  // SAFETY: uint8_t may alias any object.
  const auto* const text = reinterpret_cast<const uint8_t*>(piece.data());
  const uint8_t* const end = text + piece.size();
  const uint8_t* const cuts = cuts_.data();
  const uint8_t* p = text + begin;
  size_t count = 0;
  auto start = static_cast<uint32_t>(begin);
  const auto look = [&](uint32_t left, uint32_t right) {
    const auto at = static_cast<uint32_t>(p - text);
    const uint8_t cut = cuts[left * kRow + right];
    units[count] = {start, at};
    count += cut & kCut;
    start = cut != kNone ? at : start;
  };
  uint32_t left = 0;
  const auto decode = [&] {
    const CodePoint c = decode_code_point(p, end);
    left = kind_of(c.value);
    return c.size;
  };
  p += decode();
  while (p < end && count < units.size()) {
    if (cuts[left * kRow + *p] == kGlue && *p < 0x80) {
      while (p < end && kWhite.find(static_cast<char>(*p)) != std::string_view::npos) ++p;
      if (p < end) p += decode();
      continue;
    }
    if (*p < 0x80) {
      const auto* const stop = p + std::min(static_cast<size_t>(end - p), units.size() - count);
      for (; p < stop && *p < 0x80; left = *p++) look(left, *p);
      continue;
    }
    if (*p >= 0xC0 && *p < 0xF0 && end - p > 2) {
      const uint8_t* const stop = end - 2;
      while (p < stop && *p >= 0xC0 && *p < 0xF0 && count < units.size()) {
        const uint32_t lead = *p, second = p[1] & 0x3Fu, third = p[2] & 0x3Fu;
        const bool is_long = lead >= 0xE0;
        const uint32_t right =
            kinds_[is_long ? (lead & 0x0F) << 12 | second << 6 | third : (lead & 0x1F) << 6 | second];
        look(left, right);
        left = right;
        p += is_long ? 3 : 2;
      }
      continue;
    }
    const uint32_t before = left;
    const size_t size = decode();
    look(before, left);
    p += size;
  }
  if (p == end && count < units.size()) units[count++] = {start, static_cast<uint32_t>(piece.size())};
  return count;
}

}  // namespace millrace::tokenizer
