// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts text into units. The two characters around a place decide about a cut. Immutable once set up, then thread-safe.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/fast/cached_words.h"
#include "millrace/tokenizer/fast/unit_blocks.h"

namespace millrace::tokenizer {

class UnitScanner {
 public:
  // Each ASCII character has its own kind; other characters have one of the kinds from kFirstKind on.
  static constexpr uint8_t kFirstKind = 128, kKinds = 160;

  // The effect of a place between two characters: the unit goes on (kNone), it ends and another begins (kCut), or the
  // unit so far is dropped (kDrop). kGlue: the unit goes on after the white space that begins here; only after
  // characters beyond ASCII.
  enum Cut : uint8_t { kNone = 0, kCut = 1, kDrop = 2, kGlue = 4 };
  void set_cut(uint32_t left_kind, uint32_t right_kind, Cut cut) { cuts_[left_kind * kRow + right_kind] = cut; }
  // Returns the kind of a character beyond ASCII.
  uint8_t kind_of(uint32_t code_point) const {
    if (code_point < 0x10000) return kinds_[code_point];
    return code_point >= kIndicBegin && code_point < kIndicEnd ? indic_kind_ : astral_kind_;
  }
  // Sets the kinds of the characters up to U+FFFF, of those from kIndicBegin to kIndicEnd, and of all others above.
  // Beyond U+FFFF, only Indic characters may begin a cluster with the next one. `kinds` has 65536 entries and must
  // outlive the scanner.
  void set_kinds(const uint8_t* kinds, uint8_t indic_kind, uint8_t astral_kind) {
    kinds_ = kinds;
    indic_kind_ = indic_kind;
    astral_kind_ = astral_kind;
  }
  static constexpr uint32_t kIndicBegin = 0x11000, kIndicEnd = 0x12000;

  // Makes `scan` (nullptr: none) find units in text whose characters are all of the first `kinds` kinds, if it
  // supports the cuts between them (see UnitClasses). REQUIRES: all cuts are set.
  void use_blocks(uint32_t kinds, UnitBlockScan scan);
  bool uses_blocks() const { return blocks_ != nullptr; }
  const UnitClasses& classes() const { return classes_; }

  // The white space that units end at, if any.
  static constexpr std::string_view kWhite = " \t\n\r";

  // Fills `units` with the units that follow `begin` and returns their number; 0 only at the end. REQUIRES: `begin` is
  // 0 or the end of a unit that was returned; `units` is not empty; `piece` is below 4 GiB.
  size_t next_units(std::string_view piece, size_t begin, std::span<CachedWords::Bounds> units) const;

 private:
  static constexpr size_t kRow = 256;  // wider than needed: an index is two bytes side by side

  size_t next_units_one_by_one(std::string_view piece, size_t begin, std::span<CachedWords::Bounds> units) const;

  std::vector<uint8_t> cuts_ = std::vector<uint8_t>(kKinds * kRow);
  const uint8_t* kinds_ = nullptr;
  uint8_t indic_kind_ = kFirstKind, astral_kind_ = kFirstKind;
  UnitBlockScan blocks_ = nullptr;
  UnitClasses classes_;
};

}  // namespace millrace::tokenizer
