// SPDX-License-Identifier: Apache-2.0
#pragma once

// The hash table for look-ups of fixed-size entries: open addressing with linear probing over a power of two of slots
// in huge pages. Its size is fixed at construction; a caller that needs more room builds a larger table. Filling is
// not thread-safe. Reading is thread-safe while no thread writes.
//
// A Slot is trivially copyable. All bytes of an empty slot are zero, and its `bool is_empty() const` returns true. The
// upper bits of a hash choose the slot.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "millrace/base/memory/huge_array.h"

namespace millrace {

template <class Slot>
class ProbeTable {
 public:
  ProbeTable() = default;  // has no slots; assign a table before use
  // Has room for `entries` entries in at most half of its slots.
  explicit ProbeTable(size_t entries) : ProbeTable(WithSlots{std::bit_ceil(entries * 2 + 2)}) {}
  // For callers that grow a table. `slots`: a power of two, at least 2; one slot must stay empty.
  static ProbeTable with_slots(size_t slots) { return ProbeTable(WithSlots{slots}); }
  size_t slots() const { return slots_ ? mask_ + 1 : 0; }

  // Prefetches the memory of an entry that will be read or written.
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash >> shift_]); }
  void prefetch_to_write(uint64_t hash) { __builtin_prefetch(&slots_[hash >> shift_], 1); }

  // Returns the first slot for which is_it(slot) is true, or else the empty slot where such an entry belongs.
  // REQUIRES: there is an empty slot, that is, no more entries than were given to the constructor.
  template <class IsIt>
  Slot& find(uint64_t hash, const IsIt& is_it) {
    return slots_[index_of(hash, is_it)];
  }
  template <class IsIt>
  const Slot& find(uint64_t hash, const IsIt& is_it) const {
    return slots_[index_of(hash, is_it)];
  }
  // Calls visit(slot) for each entry, in no order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < slots(); ++i)
      if (!slots_[i].is_empty()) visit(slots_[i]);
  }

 private:
  struct WithSlots {
    size_t count;
  };
  explicit ProbeTable(WithSlots slots)
      : slots_(make_huge_array<Slot>(slots.count)), mask_(slots.count - 1), shift_(std::countl_zero(mask_)) {}

  template <class IsIt>
  size_t index_of(uint64_t hash, const IsIt& is_it) const {
    size_t i = hash >> shift_;
    while (!slots_[i].is_empty() && !is_it(slots_[i])) i = (i + 1) & mask_;
    return i;
  }

  HugeArray<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 63;
};

}  // namespace millrace
