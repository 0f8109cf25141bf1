// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/word_cache.h"

namespace millrace::tokenizer {

bool WordCache::contains(const WordRequest& word) const {
  const ShortKey key = ShortKey::of(word.word, word.word.data() + word.word.size());
  const PackedIds ids = key.bits != 0 ? find_short(short_.line(key.hash()), key)
                                      : find_long(long_.line(word.key.hash()), word.key, word.word);
  return ids.is_known();
}

void WordCache::clear() {
  short_.clear();
  long_.clear();
  arena_used_ = 0;
}

void WordCache::insert(const WordRequest& word, std::span<const uint32_t> ids) {
  const size_t size = word.word.size();
  if (size > kLongestWord || ids.size() > kMostIds) return;
  const bool keeps_bytes = !word.key.is_inline(), keeps_ids = !PackedIds::fit(ids);
  const size_t needed = (keeps_ids ? ids.size() : 0) + (keeps_bytes ? (size + 3) / 4 : 0);
  if (arena_used_ + needed > kArenaIds) clear();
  size_t place = arena_used_;
  PackedIds packed;
  if (keeps_ids) {
    std::ranges::copy(ids, &arena_[place]);
    packed = PackedIds::stored(place, ids.size());
    place += ids.size();
  } else {
    packed = PackedIds::of(ids);
  }
  if (keeps_bytes) std::memcpy(&arena_[place], word.word.data(), size);
  const ShortKey key = ShortKey::of(word.word, word.word.data() + size);
  if (key.bits != 0)
    short_.insert({key, packed});
  else
    long_.insert({word.key, packed, place});
  arena_used_ += needed;
}

}  // namespace millrace::tokenizer
