// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ids of words that one encoder has seen: text repeats itself, so most words cost one look-up. Two entries to a
// bucket of one cache line, the older is overwritten; memory is bounded by kSlots and kArenaLimit (12 MiB in all). Not
// thread-safe.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/hash.h"

namespace millrace::tokenizer {

// Words of up to 15 bytes are their own key, with the size in the top byte. A longer one is known by its hash, and its
// bytes are compared in the arena.
struct WordKey {
  static constexpr size_t kInlineBytes = 15;
  uint64_t low = 0, high = 0;
  bool operator==(const WordKey&) const = default;

  // `readable_end` is how far past the word memory may be read. REQUIRES: word is not empty.
  static WordKey of(std::string_view word, const char* readable_end) {
    WordKey key;
    const size_t size = word.size();
    if (size > kInlineBytes) return {xxh3_64(word), uint64_t{0xFF} << 56 | (size & (~uint64_t{0} >> 8))};
    if (readable_end - word.data() >= 16) {
      std::memcpy(&key, word.data(), 16);
      key.low &= ~uint64_t{0} >> (64 - 8 * (size < 8 ? size : 8));
      key.high &= size > 8 ? ~uint64_t{0} >> (64 - 8 * (size - 8)) : 0;
    } else {
      std::memcpy(&key, word.data(), size);
    }
    key.high |= uint64_t{size} << 56;
    return key;
  }
};

class WordCache {
 public:
  WordCache();

  // The ids of `word`, valid until the next insert. False when they are not here.
  bool find(const WordKey& key, std::string_view word, std::span<const uint32_t>& ids) const {
    const Slot* slot = bucket(key);
    if (slot[0].key != key && (++slot)->key != key) return false;
    const uint32_t* stored = slot->count <= kInlineIds && word.size() <= WordKey::kInlineBytes ? slot->ids : at(*slot);
    ids = {stored, slot->count};
    return word.size() <= WordKey::kInlineBytes || std::memcmp(stored + slot->count, word.data(), word.size()) == 0;
  }
  // REQUIRES: the word is not in the cache.
  void insert(const WordKey& key, std::string_view word, std::span<const uint32_t> ids);

 private:
  static constexpr size_t kSlots = size_t{1} << 18;       // 8 MiB
  static constexpr size_t kArenaLimit = size_t{1} << 20;  // ids: 4 MiB
  static constexpr size_t kLongestWord = 256;             // longer ones hardly repeat
  static constexpr uint32_t kInlineIds = 3;
  struct Slot {
    WordKey key;  // all zero: empty
    uint32_t count;
    uint32_t ids[kInlineIds];  // or ids[0] is the place in the arena
  };
  static_assert(sizeof(Slot) == 32);
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  const uint32_t* at(const Slot& slot) const { return arena_.data() + slot.ids[0]; }
  Slot* bucket(const WordKey& key) const {
    const uint64_t hash = (key.low ^ (key.high * 0x9E3779B97F4A7C15ull)) * 0xD6E8FEB86659FD93ull;
    return slots_ + (hash >> (64 - 17)) * 2;
  }
  void clear();

  std::unique_ptr<void, Free> memory_;  // from calloc: pages that no word has touched cost nothing
  Slot* slots_;                         // in memory_, a bucket to a cache line
  std::vector<uint32_t> arena_;         // ids, then for a long word its bytes
};

}  // namespace millrace::tokenizer
