// SPDX-License-Identifier: Apache-2.0
#pragma once

// The texts that a task has seen, as their hashes: what finds duplicates in bounded memory. 128 bits make a false
// duplicate less likely than a fault of the memory they lie in. Not thread-safe.

#include <cstdint>
#include <vector>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/hash.h"
#include "millrace/base/status.h"
#include "millrace/base/units.h"

namespace millrace::prepare {

class TextSet {
 public:
  explicit TextSet(int64_t max_bytes) : max_slots_(static_cast<size_t>(max_bytes) / sizeof(Hash128)) {}

  // True when it was not there. Errors: resource_exhausted (the set is as large as it may be).
  [[nodiscard]] Result<bool> insert(Hash128 hash) {
    if (hash == Hash128{}) hash.low = 1;  // zeros mark a free slot
    if (4 * (size_ + 1) > 3 * slots_.size()) RETURN_IF_ERROR(grow());
    Hash128& slot = find(slots_, hash);
    if (slot == hash) return false;
    slot = hash;
    ++size_;
    return true;
  }
  void clear() {
    slots_.clear();
    size_ = 0;
  }

 private:
  static Hash128& find(std::vector<Hash128>& slots, Hash128 hash) {
    const size_t mask = slots.size() - 1;
    for (size_t i = hash.low & mask;; i = (i + 1) & mask) {
      if (slots[i] == hash || slots[i] == Hash128{}) return slots[i];
    }
  }

  [[nodiscard]] Status grow() {
    const size_t slots = slots_.empty() ? kFirstSlots : 2 * slots_.size();
    // While it grows, the old half is there too.
    if (slots + slots_.size() > max_slots_) {
      return no_memory(fmt::format(
          "{} different documents are as many as finding duplicates may remember in {}; give it more memory, or "
          "the run more tasks",
          format_count(static_cast<int64_t>(size_)), format_bytes(static_cast<int64_t>(max_slots_ * sizeof(Hash128)))));
    }
    std::vector<Hash128> larger(slots);
    for (const Hash128 hash : slots_) {
      if (hash != Hash128{}) find(larger, hash) = hash;
    }
    slots_ = std::move(larger);
    return {};
  }

  static constexpr size_t kFirstSlots = 1024;  // a power of two, as all sizes
  const size_t max_slots_;
  std::vector<Hash128> slots_;
  size_t size_ = 0;
};

}  // namespace millrace::prepare
