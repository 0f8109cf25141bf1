// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/word_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace millrace::tokenizer {

WordCache::WordCache() : slots_(allocate(kMinBucketBits)) {}

WordCache::Slots WordCache::allocate(int bucket_bits) {
  const size_t bytes = (size_t{2} << bucket_bits) * sizeof(Slot);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Before the first touch, or it does nothing. That it is refused costs time only.
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
  return {static_cast<Slot*>(memory), Unmap{bytes}};
}

void WordCache::Unmap::operator()(Slot* slots) const {
  munmap(slots, bytes);
}

void WordCache::place(const Slot& fresh) {
  Slot* slot = slots_.get() + (bucket(fresh.key) - slots_.get());
  slot[1] = slot[0];
  slot[0] = fresh;
}

void WordCache::grow() {
  const size_t old_count = slot_count();
  bucket_bits_ = std::min(bucket_bits_ + kGrowthBits, kMaxBucketBits);
  const Slots old = std::exchange(slots_, allocate(bucket_bits_));
  inserted_ = 0;
  for (size_t i = old_count; i-- > 0;)  // the newer one of a bucket last
    if (old[i].key.high != 0) place(old[i]);
}

void WordCache::clear() {
  std::fill_n(slots_.get(), slot_count(), Slot{});
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
  if (++inserted_ > slot_count() / 2 && bucket_bits_ < kMaxBucketBits) grow();
  place(fresh);
}

}  // namespace millrace::tokenizer
