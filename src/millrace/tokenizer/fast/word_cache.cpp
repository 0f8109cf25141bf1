// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/word_cache.h"

#include <algorithm>
#include <cstring>

namespace millrace::tokenizer {

PackedIds WordCache::find_long(const LongSlot* line, const WordKey& key, std::string_view word) const {
  const LongSlot* const slot = long_.find(line, [&](const LongSlot& other) {
    return other.key == key && (key.is_inline() || std::memcmp(&arena_[other.place], word.data(), word.size()) == 0);
  });
  return slot == nullptr ? PackedIds::none() : slot->ids;
}

void WordCache::find(const WordBatch& words, Found& found) const {
  const BatchSteps& steps = batch_steps();
  ShortBatch batch;
  steps.look_ahead(words, short_, batch);
  std::array<WordKey, WordBatch::kMost> long_keys;
  std::array<const LongSlot*, WordBatch::kMost> long_lines;
  std::array<uint32_t, WordBatch::kMost> direct_words, direct_counts;
  size_t looked_up = 0, computed = 0;
  const auto place = [](size_t i) { return kArenaIds + i * DirectWords::kMostIds; };
  for (size_t i = 0; i < batch.long_count; ++i) {
    const uint32_t at = batch.longs[i];
    if (direct_ != nullptr && static_cast<uint8_t>(words[at][0]) >= 0x80) {
      direct_words[computed] = at;
      direct_counts[computed] = static_cast<uint32_t>(direct_->encode(words[at], &arena_[place(computed)]));
      if (direct_counts[computed] > 0) {
        ++computed;
        continue;
      }
    }
    batch.longs[looked_up] = at;
    long_keys[looked_up] = WordKey::of(words[at], words.readable_end);
    long_lines[looked_up] = long_.line(long_keys[looked_up].hash());
    ++looked_up;
  }
  steps.find(words.size, short_, batch, found.data());
  for (size_t i = 0; i < looked_up; ++i)
    found[batch.longs[i]] = find_long(long_lines[i], long_keys[i], words[batch.longs[i]]);
  for (size_t i = 0; i < computed; ++i) found[direct_words[i]] = PackedIds::stored(place(i), direct_counts[i]);
}

bool WordCache::contains(const WordRequest& word) const {
  const ShortKey key = ShortKey::of(word.word, word.word.data() + word.word.size());
  const PackedIds ids = key.bits != 0 ? find_short(short_, short_.line(key.hash()), key)
                                      : find_long(long_.line(word.key.hash()), word.key, word.word);
  return ids.is_known();
}

// Goes on in the other half, without the words that have something there.
void WordCache::start_half() {
  half_ = half_ == 0 ? kHalf : 0;
  half_used_ = 0;
  const auto is_there = [this](size_t place) { return place >= half_ && place < half_ + kHalf; };
  const auto ids_stay = [&](PackedIds ids) { return ids.is_inline() || !is_there(ids.place()); };
  short_.keep_if([&](const ShortSlot& slot) { return ids_stay(slot.ids); });
  long_.keep_if(
      [&](const LongSlot& slot) { return ids_stay(slot.ids) && (slot.key.is_inline() || !is_there(slot.place)); });
}

void WordCache::insert(const WordRequest& word, std::span<const uint32_t> ids) {
  const size_t size = word.word.size();
  if (size > kLongestWord || ids.size() > kMostIds) return;
  const bool keeps_bytes = !word.key.is_inline(), keeps_ids = !PackedIds::fit(ids);
  const size_t needed = (keeps_ids ? ids.size() : 0) + (keeps_bytes ? (size + 3) / 4 : 0);
  if (half_used_ + needed > kHalf) start_half();
  size_t place = half_ + half_used_;
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
  half_used_ += needed;
}

}  // namespace millrace::tokenizer
