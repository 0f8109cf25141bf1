// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/word_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace millrace::tokenizer {

WordCache::WordCache() {
  void* memory = mmap(nullptr, kSlots * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Before the first touch, or it does nothing. That it is refused costs time only.
  static_cast<void>(madvise(memory, kSlots * sizeof(Slot), MADV_HUGEPAGE));
  slots_.reset(static_cast<Slot*>(memory));
}

void WordCache::Unmap::operator()(Slot* slots) const {
  munmap(slots, kSlots * sizeof(Slot));
}

void WordCache::clear() {
  std::fill_n(slots_.get(), kSlots, Slot{});
  arena_.clear();
}

void WordCache::insert(const WordKey& key, std::string_view word, std::span<const uint32_t> ids) {
  const bool is_long = word.size() > WordKey::kInlineBytes;
  if (word.size() > kLongestWord) return;
  Slot fresh{key, {}, static_cast<uint32_t>(ids.size())};
  if (is_long || ids.size() > kInlineIds) {
    const size_t byte_words = is_long ? (word.size() + 3) / 4 : 0;
    if (arena_.size() + ids.size() + byte_words > kArenaLimit) clear();
    fresh.ids[0] = static_cast<uint32_t>(arena_.size());
    fresh.ids[1] = static_cast<uint32_t>(ids.size());
    fresh.count = kInArena;
    arena_.insert(arena_.end(), ids.begin(), ids.end());
    arena_.resize(arena_.size() + byte_words);
    if (is_long) std::memcpy(arena_.data() + fresh.ids[0] + ids.size(), word.data(), word.size());
  } else {
    std::ranges::copy(ids, fresh.ids);
  }
  Slot* slot = slots_.get() + (bucket(key) - slots_.get());
  slot[1] = slot[0];
  slot[0] = fresh;
}

}  // namespace millrace::tokenizer
