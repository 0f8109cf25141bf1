// SPDX-License-Identifier: Apache-2.0
#pragma once

// Units of files that cut text at white space and around characters that are words by themselves, found 64 bytes at a
// time: the classes of the characters become bit masks, and where units begin and end follows from them by shifts,
// without a branch for each character. Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/tokenizer/fast/cached_words.h"

namespace millrace::tokenizer {

class UnitScanner;

// The class of a character: white space, which is in no unit, a unit by itself, or (0) a part of a longer one.
struct UnitClasses {
  static constexpr uint8_t kWhite = 1, kAlone = 2;
  static constexpr uint8_t kMixed = 4;  // of a first byte: its characters are not all alone, nor all parts of units

  std::array<uint8_t, 256> of_kind{};  // of UnitScanner; the first 128 are the ASCII characters
  std::array<uint8_t, 64> of_lead{};   // of the characters whose UTF-8 begins with 0xC0 + i
  // For each lower half of an ASCII character, a bit for each upper half with which it is in the class.
  std::array<uint8_t, 16> white_nibbles{}, alone_nibbles{};

  // Sets the others from of_kind and what UnitScanner::kind_of says.
  void complete(const UnitScanner& scanner);
};

// Writes units that follow `begin` to `units` and returns how many; 0 where a unit longer than a block, bytes that are
// no UTF-8 or the end come next. REQUIRES: those of UnitScanner::next_units; units.size() >= 64.
using UnitBlockScan = size_t (*)(const UnitScanner& scanner, std::string_view piece, size_t begin,
                                 std::span<CachedWords::Bounds> units);

// nullptr when this processor has no fast one.
UnitBlockScan find_unit_block_scan();

// For tests: all that this processor can run, the fastest first.
std::span<const UnitBlockScan> all_unit_block_scans();

}  // namespace millrace::tokenizer
