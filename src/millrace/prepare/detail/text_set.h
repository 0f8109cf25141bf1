// SPDX-License-Identifier: Apache-2.0
#pragma once

// The hashes of the texts that a task has seen, to find duplicates in bounded memory. With 128 bits, a false duplicate
// is less likely than a memory fault. Not thread-safe.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "millrace/base/hash/hash.h"
#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/probe_table.h"
#include "millrace/base/status.h"
#include "millrace/base/text/units.h"

namespace millrace::prepare {

class TextSet {
 public:
  explicit TextSet(int64_t max_bytes) : max_slots_(static_cast<size_t>(max_bytes) / sizeof(Hash128)) {}

  // Adds a hash; returns false if it was there already. Errors: resource_exhausted (the set has reached its maximum
  // size).
  [[nodiscard]] Result<bool> insert(Hash128 hash) {
    if (hash == Hash128{}) hash.low = 1;  // zeros mark a free slot
    if (4 * (size_ + 1) > 3 * slots_.slots()) RETURN_IF_ERROR(grow());
    Slot& slot = find(slots_, hash);
    if (!slot.is_empty()) return false;
    slot.hash = hash;
    ++size_;
    return true;
  }
  void clear() {
    slots_ = {};
    size_ = 0;
  }

 private:
  struct Slot {
    Hash128 hash;
    bool is_empty() const { return hash == Hash128{}; }
  };

  static Slot& find(ProbeTable<Slot>& slots, Hash128 hash) {
    return slots.find(hash.high, [&](const Slot& slot) { return slot.hash == hash; });
  }

  [[nodiscard]] Status grow() {
    const size_t slots = std::max(kFirstSlots, 2 * slots_.slots());
    // The old table still takes memory while the set grows.
    if (slots + slots_.slots() > max_slots_) {
      return no_memory(fmt::format(
          "{} different documents are as many as finding duplicates may remember in {}; give it more memory, or "
          "the run more tasks",
          format_count(static_cast<int64_t>(size_)), format_bytes(static_cast<int64_t>(max_slots_ * sizeof(Hash128)))));
    }
    auto larger = ProbeTable<Slot>::with_slots(slots);
    slots_.for_each([&](const Slot& slot) { find(larger, slot.hash) = slot; });
    slots_ = std::move(larger);
    return {};
  }

  static constexpr size_t kFirstSlots = 1024;  // a power of two, as all sizes are
  const size_t max_slots_;
  ProbeTable<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace millrace::prepare
