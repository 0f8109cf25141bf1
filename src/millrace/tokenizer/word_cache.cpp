// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/word_cache.h"

#include <algorithm>
#include <new>

namespace millrace::tokenizer {

WordCache::WordCache() {
  constexpr size_t kCacheLine = 64;
  size_t space = kSlots * sizeof(Slot) + kCacheLine;
  memory_.reset(std::calloc(space, 1));
  if (memory_ == nullptr) throw std::bad_alloc();
  void* aligned = memory_.get();
  slots_ = static_cast<Slot*>(std::align(kCacheLine, kSlots * sizeof(Slot), aligned, space));
}

void WordCache::clear() {
  std::fill_n(slots_, kSlots, Slot{});
  arena_.clear();
}

void WordCache::insert(const WordKey& key, std::string_view word, std::span<const uint32_t> ids) {
  const bool is_long = word.size() > WordKey::kInlineBytes;
  if (word.size() > kLongestWord) return;
  Slot fresh{key, static_cast<uint32_t>(ids.size()), {}};
  if (is_long || ids.size() > kInlineIds) {
    const size_t byte_words = is_long ? (word.size() + 3) / 4 : 0;
    if (arena_.size() + ids.size() + byte_words > kArenaLimit) clear();
    fresh.ids[0] = static_cast<uint32_t>(arena_.size());
    arena_.insert(arena_.end(), ids.begin(), ids.end());
    arena_.resize(arena_.size() + byte_words);
    if (is_long) std::memcpy(arena_.data() + fresh.ids[0] + ids.size(), word.data(), word.size());
  } else {
    std::ranges::copy(ids, fresh.ids);
  }
  Slot* slot = bucket(key);
  slot[1] = slot[0];
  slot[0] = fresh;
}

}  // namespace millrace::tokenizer
