// SPDX-License-Identifier: Apache-2.0
#pragma once

// The merge list of byte pair encoding, and its application to one word. Repeatedly joins the adjacent symbols whose
// merge has the lowest rank, the leftmost of equals, until no adjacent symbols have a merge. A MergeTable is immutable
// and thread-safe; a MergeScratch belongs to one thread.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/base/memory/huge_array.h"

namespace millrace::tokenizer {

// Two tokens that become one. The index in the list is the rank.
struct Merge {
  uint32_t left, right, joined;
};

// Maps (left id, right id) to (rank, id of the joined token), by open addressing over lines of four. A pair is in its
// own line or, if that is full, in a later one. A ProbeTable (base/probe_table.h) would be slower. This table compares
// all slots of a line without a branch, rejects most pairs without a merge by a filter, is filled by several threads,
// and may be two thirds full.
class MergeTable {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  struct Slot {
    uint64_t inverted_key;  // 0: empty; only a pair of two kNoToken would give 0, and no merge has it
    uint64_t value;
  };
  static constexpr size_t kLineSlots = 4;

  // Builds large tables on several threads.
  explicit MergeTable(std::span<const Merge> merges);
  // Calls visit(left, right, rank, joined) for each merge, in no order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    // Half of the slots are empty, and the processor cannot predict which: gathers the merges of several slots without
    // a branch.
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
  // Prefetches and returns the line that find() will search. Most pairs have no merge. A small filter, which stays in
  // the cache, rejects most of these; for them this returns an empty line, so callers need no branch.
  const Slot* look_ahead(uint32_t left, uint32_t right) const {
    const uint64_t h = hash(left, right);
    const bool may_be = (filter_[h >> filter_shift_] >> (h & 63) & 1) != 0;
    const Slot* const lines[] = {kEmptyLine, line(h)};
    __builtin_prefetch(lines[may_be]);
    return lines[may_be];
  }
  static const Slot* empty_line() { return kEmptyLine; }
  // Returns rank << 32 | joined id, or kNone.
  uint64_t find(uint32_t left, uint32_t right) const { return find(line(hash(left, right)), left, right); }
  // Does the same; `line` is the result of look_ahead.
  uint64_t find(const Slot* line, uint32_t left, uint32_t right) const {
    const uint64_t inverted_key = ~(uint64_t{left} << 32 | right);
    // Compares all slots, because the processor cannot predict which one matches.
    const bool second = line[1].inverted_key == inverted_key, third = line[2].inverted_key == inverted_key,
               fourth = line[3].inverted_key == inverted_key;
    const Slot* const slot = line + (second + 2 * third + 3 * fourth);
    const bool is_it = slot->inverted_key == inverted_key;
    if (!is_it && line[3].inverted_key != 0) return find_further(line, inverted_key);
    return is_it ? slot->value : kNone;
  }

 private:
  // A lane looks up a pair of two kNoToken before its first merge. Every slot here equals that pair, and find() adds
  // up the numbers of the equal slots (1 + 2 + 3), so the array is longer than a line.
  static constexpr Slot kEmpty{0, kNone};
  alignas(64) static constexpr Slot kEmptyLine[2 * kLineSlots] = {kEmpty, kEmpty, kEmpty, kEmpty,
                                                                  kEmpty, kEmpty, kEmpty, kEmpty};

  class PlaceOrder;
  bool insert(const Merge& merge, uint32_t rank, size_t end);
  // Use the upper bits; they are mixed best.
  static uint64_t hash(uint32_t left, uint32_t right) { return (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15ull; }
  const Slot* line(uint64_t h) const { return slots_.get() + (h >> shift_) * kLineSlots; }
  uint64_t find_further(const Slot* line, uint64_t inverted_key) const;

  size_t mask_;
  int shift_, filter_shift_;
  HugeArray<Slot> slots_;
  HugeArray<uint64_t> filter_;  // one bit set for each pair; about eight bits of memory per pair
};

// Working memory for one word. The caller fills `symbols` with the ids of the first symbols; merge_symbols() replaces
// them by the merged ones. Takes about 28 bytes per symbol; frees the memory of words of more than a million symbols.
struct MergeScratch {
  std::vector<uint32_t> symbols;
  std::vector<uint32_t> sizes;  // bytes of each symbol, added up as they join; empty if the caller does not need them
  std::vector<uint32_t> previous, next;
  std::vector<uint64_t> merges, queue;
};

// Merges `scratch.symbols`, in O(n log n) time. REQUIRES: fewer than 2^32 symbols.
void merge_symbols(const MergeTable& table, MergeScratch& scratch);

}  // namespace millrace::tokenizer
