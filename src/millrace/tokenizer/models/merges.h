// SPDX-License-Identifier: Apache-2.0
#pragma once

// The merge list of byte pair encoding and what it does to the symbols of one word: among the neighbours that have a
// merge, the one of the lowest rank is joined, the leftmost of equals, until none is left. A MergeTable is immutable
// and thread-safe; a MergeScratch belongs to one thread.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/base/memory/huge_array.h"

namespace millrace::tokenizer {

// Two tokens that become one. Its rank is its place in the list.
struct Merge {
  uint32_t left, right, joined;
};

// (left id, right id) -> (rank, id of the joined token): open addressing over lines of four. A pair lies in its own
// line or, when that is full, behind it. It is not a ProbeTable (base/probe_table.h) for the sake of speed: all slots
// of a line are compared without a branch, a filter in front answers for most pairs that have no merge, several threads
// fill it, and it may be two thirds full.
class MergeTable {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  struct Slot {
    uint64_t inverted_key;  // 0: empty, since no two ids are kNoToken
    uint64_t value;
  };
  static constexpr size_t kLineSlots = 4;

  // Large ones are made on several threads.
  explicit MergeTable(std::span<const Merge> merges);
  // Calls visit(left, right, rank, joined) for each merge, in no order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    // Half of the slots are empty, which the processor cannot predict: one branch for several slots at once.
    constexpr size_t kSome = 64;
    std::array<Slot, kSome> merges;
    for (size_t first = 0; first <= mask_; first += kSome) {
      size_t count = 0;
      for (size_t i = first; i < std::min(first + kSome, mask_ + 1); ++i) {
        merges[count] = slots_[i];
        count += slots_[i].inverted_key != 0;
      }
      for (size_t i = 0; i < count; ++i) {
        const uint64_t key = ~merges[i].inverted_key, value = merges[i].value;
        visit(static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key), static_cast<uint32_t>(value >> 32),
              static_cast<uint32_t>(value));
      }
    }
  }
  // Where find will look, asked of memory. Most pairs that are asked for have no merge, which a small filter near the
  // processor knows: for these it returns an empty line, so that callers need no branch.
  const Slot* look_ahead(uint32_t left, uint32_t right) const {
    const uint64_t h = hash(left, right);
    const bool may_be = (filter_[h >> filter_shift_] >> (h & 63) & 1) != 0;
    const Slot* const lines[] = {kEmptyLine, line(h)};
    __builtin_prefetch(lines[may_be]);
    return lines[may_be];
  }
  static const Slot* empty_line() { return kEmptyLine; }
  // rank << 32 | joined id, or kNone.
  uint64_t find(uint32_t left, uint32_t right) const { return find(line(hash(left, right)), left, right); }
  // The same; `line` is what look_ahead gave.
  uint64_t find(const Slot* line, uint32_t left, uint32_t right) const {
    const uint64_t inverted_key = ~(uint64_t{left} << 32 | right);
    // Compares all: the processor cannot predict which of them it is.
    const bool second = line[1].inverted_key == inverted_key, third = line[2].inverted_key == inverted_key,
               fourth = line[3].inverted_key == inverted_key;
    const Slot* const slot = line + (second + 2 * third + 3 * fourth);
    const bool is_it = slot->inverted_key == inverted_key;
    if (!is_it && line[3].inverted_key != 0) return find_further(line, inverted_key);
    return is_it ? slot->value : kNone;
  }

 private:
  // A pair of no tokens, which is what a lane asks for before its first merge, equals all of these, and find adds up
  // which slots are equal: so there are more of them than in a line.
  static constexpr Slot kEmpty{0, kNone};
  alignas(64) static constexpr Slot kEmptyLine[2 * kLineSlots] = {kEmpty, kEmpty, kEmpty, kEmpty,
                                                                  kEmpty, kEmpty, kEmpty, kEmpty};

  class PlaceOrder;
  bool insert(const Merge& merge, uint32_t rank, size_t end);
  // The upper bits are the better ones.
  static uint64_t hash(uint32_t left, uint32_t right) { return (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15ull; }
  const Slot* line(uint64_t h) const { return slots_.get() + (h >> shift_) * kLineSlots; }
  uint64_t find_further(const Slot* line, uint64_t inverted_key) const;

  size_t mask_;
  int shift_, filter_shift_;
  HugeArray<Slot> slots_;
  HugeArray<uint64_t> filter_;  // a bit for each pair, some eight bits a pair
};

// A word on its way: filled with the ids of its first symbols, it holds those of the merged ones afterwards. About 28
// bytes for each symbol; memory of words of more than a million is given back.
struct MergeScratch {
  std::vector<uint32_t> symbols;
  std::vector<uint32_t> sizes;  // bytes of each symbol, added up as they join; empty when nobody asks
  std::vector<uint32_t> previous, next;
  std::vector<uint64_t> merges, queue;
};

// Merges what `scratch.symbols` holds, in time linear times a logarithm. REQUIRES: fewer than 2^32 symbols.
void merge_symbols(const MergeTable& table, MergeScratch& scratch);

}  // namespace millrace::tokenizer
