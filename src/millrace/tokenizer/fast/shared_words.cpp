// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/shared_words.h"

namespace millrace::tokenizer {
namespace {

using Field = std::atomic_ref<uint64_t>;

}  // namespace

// The loads acquire, so that the second look at the version comes after them.
PackedIds SharedWords::User::find(const WordKey& key) const {
  Slot& slot = words_.slot(key);
  const Field version(slot.version);
  const uint64_t before = version.load(std::memory_order_acquire);
  const WordKey found{Field(slot.low).load(std::memory_order_acquire),
                      Field(slot.high).load(std::memory_order_acquire)};
  const uint64_t ids = Field(slot.ids).load(std::memory_order_acquire);
  const bool is_whole = before % 2 == 0 && version.load(std::memory_order_relaxed) == before;
  return is_whole && found == key ? PackedIds::from_bits(ids) : PackedIds::none();
}

// The stores release, so that a thread that sees one of them sees the odd version too.
void SharedWords::User::insert(const WordKey& key, PackedIds ids) {
  Slot& slot = words_.slot(key);
  const Field version(slot.version);
  uint64_t before = version.load(std::memory_order_relaxed);
  if (before % 2 != 0 || !version.compare_exchange_strong(before, before + 1, std::memory_order_acquire)) return;
  Field(slot.low).store(key.low, std::memory_order_release);
  Field(slot.high).store(key.high, std::memory_order_release);
  Field(slot.ids).store(ids.bits(), std::memory_order_release);
  version.store(before + 2, std::memory_order_release);
}

}  // namespace millrace::tokenizer
