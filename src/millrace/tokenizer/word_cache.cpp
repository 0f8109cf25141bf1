// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/word_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace millrace::tokenizer {
namespace {

constexpr size_t kMovedSlots = size_t{1} << 15;  // 1 MiB of them

}  // namespace

WordCache::WordCache()
    : slots_(make_huge_array<Slot>(slot_count())), arena_(make_huge_array<uint32_t>(kArenaIds, Pages::kSmall)) {}

void WordCache::place(const Slot& fresh) {
  Slot* slot = slots_.get() + (bucket(fresh.key) - slots_.get());
  slot[1] = slot[0];
  slot[0] = fresh;
}

void WordCache::grow() {
  const size_t old_count = slot_count();
  bucket_bits_ = std::min(bucket_bits_ + kGrowthBits, kMaxBucketBits);
  const HugeArray<Slot> old = std::exchange(slots_, make_huge_array<Slot>(slot_count()));
  inserted_ = 0;
  for (size_t i = old_count; i-- > 0;) {  // the newer one of a bucket last
    if (old[i].key.high != 0) place(old[i]);
    // What has moved is given back, so that the two tables are never there as a whole.
    if (i % kMovedSlots == 0)
      static_cast<void>(madvise(&old[i], std::min(kMovedSlots, old_count - i) * sizeof(Slot), MADV_DONTNEED));
  }
}

void WordCache::clear() {
  std::fill_n(slots_.get(), slot_count(), Slot{});
  arena_used_ = 0;
}

void WordCache::insert(const WordKey& key, std::string_view word, std::span<const uint32_t> ids) {
  const bool is_long = word.size() > WordKey::kInlineBytes;
  if (word.size() > kLongestWord || ids.size() > kMostIds) return;
  Slot fresh{key, {}, static_cast<uint32_t>(ids.size())};
  if (is_long || ids.size() > kInlineIds) {
    const size_t byte_words = is_long ? (word.size() + 3) / 4 : 0;
    if (arena_used_ + ids.size() + byte_words > kArenaIds) clear();
    fresh.ids[0] = static_cast<uint32_t>(arena_used_);
    fresh.ids[1] = static_cast<uint32_t>(ids.size());
    fresh.count = kInArena;
    std::ranges::copy(ids, &arena_[arena_used_]);
    arena_used_ += ids.size();
    if (is_long) std::memcpy(&arena_[arena_used_], word.data(), word.size());
    arena_used_ += byte_words;
  } else {
    std::ranges::copy(ids, fresh.ids);
  }
  if (++inserted_ > slot_count() / 2 && bucket_bits_ < kMaxBucketBits) grow();
  place(fresh);
}

}  // namespace millrace::tokenizer
