// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds units, 64 bytes at a time, in files that cut text at white space and around characters that are words by
// themselves. The classes of the characters become bit masks. Shifts of the masks give the beginnings and ends of
// units, without a branch for each character. Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/tokenizer/fast/cached_words.h"

namespace millrace::tokenizer {

class UnitScanner;

// The class of a character: white space (in no unit), a unit by itself, or 0 (part of a longer unit).
struct UnitClasses {
  static constexpr uint8_t kWhite = 1, kAlone = 2;
  static constexpr uint8_t kMixed = 4;  // for a first byte: its characters are of several classes

  std::array<uint8_t, 256> of_kind{};  // by kind of UnitScanner; the first 128 are the ASCII characters
  std::array<uint8_t, 64> of_lead{};   // by first byte 0xC0 + i of a character's UTF-8
  // For each lower half of an ASCII character, one bit for each upper half that puts the character into the class.
  std::array<uint8_t, 16> white_nibbles{}, alone_nibbles{};

  // Fills the other tables from of_kind and UnitScanner::kind_of.
  void complete(const UnitScanner& scanner);
};

// Writes units that follow `begin` to `units` and returns their number. Returns 0 if the next unit is longer than a
// block, the next bytes are not UTF-8, or the piece ends. REQUIRES: the conditions of UnitScanner::next_units;
// units.size() >= 64.
using UnitBlockScan = size_t (*)(const UnitScanner& scanner, std::string_view piece, size_t begin,
                                 std::span<CachedWords::Bounds> units);

// Returns the fastest scan, or nullptr if this processor has no fast one.
UnitBlockScan find_unit_block_scan();

// Returns all scans that this processor can run, the fastest first. For tests.
std::span<const UnitBlockScan> all_unit_block_scans();

}  // namespace millrace::tokenizer
