// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ids of words that one encoder has seen: text repeats itself, so most words cost one look-up. Nine of ten words
// have at most eight bytes: they lie four to a cache line, so that those that are met often stay near the processor.
// The tables grow with the words up to 16 MiB each, then a new word drives out another; ids that do not fit into them
// and the bytes of long words take up to 24 MiB more, then all begins anew. Pages that no word has touched cost
// nothing. Not thread-safe.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "millrace/tokenizer/huge_array.h"
#include "millrace/tokenizer/word_key.h"

namespace millrace::tokenizer {

// The ids of a word in 64 bits: up to three, or a place in the arena of a WordCache.
class PackedIds {
 public:
  static constexpr size_t kMost = 3;

  PackedIds() = default;  // of no known word
  // False: they are too many or too large.
  static bool fit(std::span<const uint32_t> ids) {
    return !ids.empty() && ids.size() <= kMost && std::ranges::max(ids) <= kIdMask;
  }
  // REQUIRES: fit(ids).
  static PackedIds of(std::span<const uint32_t> ids) {
    uint64_t bits = uint64_t{ids.size()} << kCountShift;
    for (size_t i = 0; i < ids.size(); ++i) bits |= uint64_t{ids[i]} << (kIdBits * i);
    return PackedIds(bits);
  }
  // REQUIRES: place < 2^32, count < 2^28.
  static PackedIds stored(size_t place, size_t count) { return PackedIds(kStored | count << 32 | place); }

  bool is_known() const { return bits_ != 0; }
  bool is_inline() const { return (bits_ >> kCountShift) - 1 < kMost; }
  // How many were written; `ids` has room for kMost. REQUIRES: is_inline().
  size_t write(uint32_t* ids) const {
    for (size_t i = 0; i < kMost; ++i) ids[i] = static_cast<uint32_t>(bits_ >> (kIdBits * i)) & kIdMask;
    return bits_ >> kCountShift;
  }
  // Of those in the arena.
  size_t place() const { return bits_ & UINT32_MAX; }
  size_t count() const { return (bits_ & ~kStored) >> 32; }

 private:
  static constexpr int kIdBits = 20, kCountShift = 60;
  static constexpr uint32_t kIdMask = (1 << kIdBits) - 1;
  static constexpr uint64_t kStored = uint64_t{1} << 63;
  explicit PackedIds(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};

// Open addressing over cache lines: a word lies in its own line or, when that is full, in one that follows. A Slot has
// a `key`, which tells its hash() and whether it is() another, and says whether it is_empty(); zero bytes are empty.
template <class Slot>
class WordTable {
 public:
  static constexpr size_t kLineSlots = 64 / sizeof(Slot);
  static_assert(64 % sizeof(Slot) == 0);

  WordTable() : slots_(make_huge_array<Slot>(slot_count())) {}

  // Where a word would be, until the next insert. Fetched ahead of its use.
  const Slot* line(uint64_t hash) const {
    const Slot* const line = slots_.get() + (hash >> (64 - line_bits_)) * kLineSlots;
    __builtin_prefetch(line);
    return line;
  }
  // The first slot for which is_it(slot), of those from `line` on in which it can be, or nullptr.
  template <class IsIt>
  const Slot* find(const Slot* line, const IsIt& is_it) const {
    for (const Slot* slot = line;; slot = slot + 1 == slots_.get() + slot_count() ? slots_.get() : slot + 1) {
      if (slot->is_empty()) return nullptr;
      if (is_it(*slot)) return slot;
    }
  }
  // When it is full, the word takes the place of another. REQUIRES: it is not there.
  void insert(const Slot& fresh) {
    const bool is_largest = line_bits_ == kMostLineBits;
    if (words_ >= (is_largest ? slot_count() / 4 * 3 : slot_count() / 2)) {
      if (is_largest) {
        slots_[home(fresh) + ++replaced_ % kLineSlots] = fresh;
        return;
      }
      grow();
    }
    place(fresh);
    ++words_;
  }
  void clear() {
    std::fill_n(slots_.get(), slot_count(), Slot{});
    words_ = 0;
  }

 private:
  static constexpr int kMostLineBits = 18;  // 16 MiB
  static constexpr int kGrowthBits = 2;     // by less, more is moved than is gained
  size_t slot_count() const { return kLineSlots << line_bits_; }
  size_t home(const Slot& slot) const { return (slot.hash() >> (64 - line_bits_)) * kLineSlots; }
  void place(const Slot& fresh) {
    size_t i = home(fresh);
    while (!slots_[i].is_empty()) i = (i + 1) & (slot_count() - 1);
    slots_[i] = fresh;
  }
  void grow() {
    const size_t old_count = slot_count();
    line_bits_ = std::min(line_bits_ + kGrowthBits, kMostLineBits);
    const HugeArray<Slot> old = std::exchange(slots_, make_huge_array<Slot>(slot_count()));
    for (size_t i = 0; i < old_count; ++i)
      if (!old[i].is_empty()) place(old[i]);
  }

  int line_bits_ = 11;  // 128 KiB
  size_t words_ = 0, replaced_ = 0;
  HugeArray<Slot> slots_;
};

// A word that the cache does not have; its ids are `count` from `first` on of those that a WordModel appended.
struct WordRequest {
  std::string_view word;
  WordKey key;
  uint32_t first = 0, count = 0;
};

class WordCache {
 public:
  static constexpr size_t kBatch = 256;

  WordCache() : arena_(make_huge_array<uint32_t>(kArenaIds, Pages::kSmall)) {}

  // Looks up word_at(i) for each i below `words`, at most kBatch: memory brings the lines of all while each is
  // computed. `readable_end` is how far memory may be read.
  template <class WordAt>
  void find(size_t words, const WordAt& word_at, const char* readable_end, std::array<PackedIds, kBatch>& found) const;

  bool contains(const WordRequest& word) const;
  // Of ids that are not inline; valid until the next insert.
  std::span<const uint32_t> stored_ids(PackedIds ids) const { return {arena_.get() + ids.place(), ids.count()}; }
  // REQUIRES: the word is not in the cache.
  void insert(const WordRequest& word, std::span<const uint32_t> ids);

 private:
  static constexpr size_t kArenaIds = size_t{6} << 20;
  static constexpr size_t kLongestWord = 256;  // longer ones hardly repeat
  static constexpr size_t kMostIds = 4096;     // of a word that is kept

  struct ShortSlot {
    ShortKey key;
    PackedIds ids;
    bool is_empty() const { return key.bits == 0; }
    uint64_t hash() const { return key.hash(); }
  };
  struct LongSlot {
    WordKey key;
    PackedIds ids;
    uint64_t place;  // in the arena, of the bytes of a word that is not its own key
    bool is_empty() const { return key.high == 0; }
    uint64_t hash() const { return key.hash(); }
  };
  static_assert(sizeof(ShortSlot) == 16 && sizeof(LongSlot) == 32);

  PackedIds find_short(const ShortSlot* line, ShortKey key) const;
  PackedIds find_long(const LongSlot* line, const WordKey& key, std::string_view word) const;
  void clear();

  WordTable<ShortSlot> short_;
  WordTable<LongSlot> long_;
  HugeArray<uint32_t> arena_;  // ids, then for a long word its bytes
  size_t arena_used_ = 0;
};

inline PackedIds WordCache::find_short(const ShortSlot* line, ShortKey key) const {
  // All are compared: which of them it is can't be foretold, whether it is one of them can. A key of zero finds the ids
  // of an empty slot, which are none.
  const bool second = line[1].key == key, third = line[2].key == key, fourth = line[3].key == key;
  const ShortSlot* const slot = line + (second + 2 * third + 3 * fourth);
  if (slot->key == key) return slot->ids;
  if (line[3].is_empty() || key.bits == 0) return {};
  const ShortSlot* const further = short_.find(line, [&](const ShortSlot& other) { return other.key == key; });
  return further == nullptr ? PackedIds() : further->ids;
}

inline PackedIds WordCache::find_long(const LongSlot* line, const WordKey& key, std::string_view word) const {
  const LongSlot* const slot = long_.find(line, [&](const LongSlot& other) {
    return other.key == key && (key.is_inline() || std::memcmp(&arena_[other.place], word.data(), word.size()) == 0);
  });
  return slot == nullptr ? PackedIds() : slot->ids;
}

template <class WordAt>
void WordCache::find(size_t words, const WordAt& word_at, const char* readable_end,
                     std::array<PackedIds, kBatch>& found) const {
  std::array<ShortKey, kBatch> keys;
  std::array<const ShortSlot*, kBatch> lines;
  std::array<uint32_t, kBatch> long_words;
  std::array<WordKey, kBatch> long_keys;
  std::array<const LongSlot*, kBatch> long_lines;
  size_t longs = 0;
  for (size_t i = 0; i < words; ++i) {
    keys[i] = ShortKey::of(word_at(i), readable_end);
    lines[i] = short_.line(keys[i].hash());
    long_words[longs] = static_cast<uint32_t>(i);
    longs += keys[i].bits == 0;
  }
  for (size_t i = 0; i < longs; ++i) {
    long_keys[i] = WordKey::of(word_at(long_words[i]), readable_end);
    long_lines[i] = long_.line(long_keys[i].hash());
  }
  for (size_t i = 0; i < words; ++i) found[i] = find_short(lines[i], keys[i]);
  for (size_t i = 0; i < longs; ++i)
    found[long_words[i]] = find_long(long_lines[i], long_keys[i], word_at(long_words[i]));
}

}  // namespace millrace::tokenizer
