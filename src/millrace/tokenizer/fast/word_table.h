// SPDX-License-Identifier: Apache-2.0
#pragma once

// The hash table of a word cache, and the ids that it keeps for each word. Pages that no word has touched use no
// memory. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "millrace/base/memory/huge_array.h"

namespace millrace::tokenizer {

// The ids of a word in 64 bits: up to three, or a place in the arena of a WordCache.
class PackedIds {
 public:
  static constexpr size_t kMost = 3;

  PackedIds() = default;  // indeterminate
  static PackedIds none() { return PackedIds(0); }
  // Returns whether the ids fit: one to kMost ids, none above kIdMask.
  static bool fit(std::span<const uint32_t> ids) {
    return !ids.empty() && ids.size() <= kMost && std::ranges::max(ids) <= kIdMask;
  }
  // REQUIRES: fit(ids).
  static PackedIds of(std::span<const uint32_t> ids) {
    uint64_t bits = uint64_t{ids.size()} << kCountShift;
    for (size_t i = 0; i < ids.size(); ++i) bits |= uint64_t{ids[i]} << (kIdBits * i);
    return PackedIds(bits);
  }
  // REQUIRES: place < 2^32, count < 2^28.
  static PackedIds stored(size_t place, size_t count) { return PackedIds(kStored | count << 32 | place); }

  bool is_known() const { return bits_ != 0; }
  bool is_inline() const { return (bits_ >> kCountShift) - 1 < kMost; }
  // Writes the ids and returns their number. `ids` has room for kMost. REQUIRES: is_inline().
  size_t write(uint32_t* ids) const {
    for (size_t i = 0; i < kMost; ++i) ids[i] = static_cast<uint32_t>(bits_ >> (kIdBits * i)) & kIdMask;
    return bits_ >> kCountShift;
  }
  // For tables that store the bits themselves: from_bits(ids.bits()) equals `ids`.
  uint64_t bits() const { return bits_; }
  static PackedIds from_bits(uint64_t bits) { return PackedIds(bits); }
  // The place and number of ids in the arena.
  size_t place() const { return bits_ & UINT32_MAX; }
  size_t count() const { return (bits_ & ~kStored) >> 32; }

 private:
  // Three ids from the lowest bit up; their count is in the top bits.
  static constexpr int kIdBits = 20, kCountShift = 60;
  static constexpr uint32_t kIdMask = (1 << kIdBits) - 1;
  static constexpr uint64_t kStored = uint64_t{1} << 63;
  explicit PackedIds(uint64_t bits) : bits_(bits) {}
  uint64_t bits_;
};

// Open addressing over cache lines: a word is in its own line or, if that is full, in a later one. A Slot has hash()
// and is_empty(); zero bytes are empty. A ProbeTable (base/probe_table.h) would be slower: vector code compares all
// slots of a line of this table at once (short_words.cpp). The table grows with the text up to a limit; then new words
// replace old ones.
template <class Slot>
class WordTable {
 public:
  static constexpr size_t kLineSlots = 64 / sizeof(Slot);
  static_assert(64 % sizeof(Slot) == 0);

  WordTable() : slots_(make_huge_array<Slot>(slot_count())) {}

  // Prefetches and returns the line of a word. Valid until the next insert().
  const Slot* line(uint64_t hash) const {
    const Slot* const line = lines() + (hash >> hash_shift()) * kLineSlots;
    __builtin_prefetch(line);
    return line;
  }
  // For callers that compute the lines of many words at once: a word's line is number hash >> hash_shift() in lines().
  const Slot* lines() const { return slots_.get(); }
  int hash_shift() const { return 64 - line_bits_; }

  // Returns the first slot with is_it(slot), from `line` to the next empty slot; nullptr if there is none.
  template <class IsIt>
  const Slot* find(const Slot* line, const IsIt& is_it) const {
    for (const Slot* slot = line;; slot = slot + 1 == slots_.get() + slot_count() ? slots_.get() : slot + 1) {
      if (slot->is_empty()) return nullptr;
      if (is_it(*slot)) return slot;
    }
  }
  // Inserts a word. A full table of the largest size replaces another word. REQUIRES: the word is not in the table.
  void insert(const Slot& fresh) {
    const bool is_largest = line_bits_ == kMostLineBits;
    if (words_ >= (is_largest ? slot_count() / 4 * 3 : slot_count() / 2)) {
      if (is_largest) {
        slots_[home(fresh) + ++replaced_ % kLineSlots] = fresh;
        return;
      }
      grow();
    }
    place(fresh);
    ++words_;
  }
  // Drops the slots for which `keeps(slot)` is false.
  template <class Keeps>
  void keep_if(const Keeps& keeps) {
    std::vector<Slot> kept;
    for (size_t i = 0; i < slot_count(); ++i) {
      if (slots_[i].is_empty()) continue;
      if (keeps(slots_[i])) kept.push_back(slots_[i]);
      slots_[i] = Slot{};
    }
    for (const Slot& slot : kept) place(slot);
    words_ = kept.size();
  }

 private:
  static constexpr int kMostLineBits = 18;  // 16 MiB
  static constexpr int kGrowthBits = 2;     // smaller steps cost more than they save
  size_t slot_count() const { return kLineSlots << line_bits_; }
  size_t home(const Slot& slot) const { return (slot.hash() >> hash_shift()) * kLineSlots; }
  void place(const Slot& fresh) {
    size_t i = home(fresh);
    while (!slots_[i].is_empty()) i = (i + 1) & (slot_count() - 1);
    slots_[i] = fresh;
  }
  void grow() {
    const size_t old_count = slot_count();
    line_bits_ = std::min(line_bits_ + kGrowthBits, kMostLineBits);
    const HugeArray<Slot> old = std::exchange(slots_, make_huge_array<Slot>(slot_count()));
    for (size_t i = 0; i < old_count; ++i)
      if (!old[i].is_empty()) place(old[i]);
  }

  int line_bits_ = 11;  // 128 KiB
  size_t words_ = 0, replaced_ = 0;
  HugeArray<Slot> slots_;
};

}  // namespace millrace::tokenizer
