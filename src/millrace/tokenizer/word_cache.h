// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ids of words that one encoder has seen: text repeats itself, so most words cost one look-up. Two entries to a
// bucket of one cache line, the older is overwritten. The table grows with the words up to 32 MiB, ids that do not fit
// into it take up to 24 MiB more; pages that no word has touched cost nothing. Not thread-safe.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "millrace/tokenizer/huge_array.h"
#include "millrace/tokenizer/word_key.h"

namespace millrace::tokenizer {

// A word that the cache does not have; its ids are `count` from `first` on of those that a WordModel appended.
struct WordRequest {
  std::string_view word;
  WordKey key;
  uint32_t first = 0, count = 0;
};

class WordCache {
 public:
  static constexpr uint32_t kInlineIds = 3;
  struct Slot {
    WordKey key;               // all zero: empty
    uint32_t ids[kInlineIds];  // or ids[0] is the place in the arena and ids[1] how many are there
    uint32_t count;            // or kInArena
  };
  static_assert(sizeof(Slot) == 32);
  static constexpr uint32_t kInArena = UINT32_MAX;

  WordCache();

  size_t bucket_count() const { return size_t{1} << bucket_bits_; }
  // Where a word would be, until the bucket count changes. Fetched ahead of its use.
  const Slot* bucket(const WordKey& key) const {
    const Slot* slot = slots_.get() + (key.hash() >> (64 - bucket_bits_)) * 2;
    __builtin_prefetch(slot);
    return slot;
  }
  // Its slot in that bucket, or nullptr. One of kInArena is only the word's if stored_ids says so.
  static const Slot* find(const Slot* bucket, const WordKey& key) {
    // Both are compared: which of them it is can't be foretold, whether it is one of them can.
    const bool first = bucket[0].key == key, second = bucket[1].key == key;
    return first | second ? bucket + (second & !first) : nullptr;
  }
  // The ids of a slot of kInArena, valid until the next insert. False: another word has the same hash.
  bool stored_ids(const Slot& slot, std::string_view word, std::span<const uint32_t>& ids) const {
    ids = {arena_.get() + slot.ids[0], slot.ids[1]};
    return word.size() <= WordKey::kInlineBytes || std::memcmp(ids.data() + ids.size(), word.data(), word.size()) == 0;
  }
  // REQUIRES: the word is not in the cache.
  void insert(const WordKey& key, std::string_view word, std::span<const uint32_t> ids);

 private:
  static constexpr int kMinBucketBits = 12;  // 256 KiB
  static constexpr int kMaxBucketBits = 19;  // 32 MiB
  static constexpr int kGrowthBits = 3;
  static constexpr size_t kArenaIds = size_t{6} << 20;
  static constexpr size_t kLongestWord = 256;  // longer ones hardly repeat
  static constexpr size_t kMostIds = 4096;     // of a word that is kept
  size_t slot_count() const { return 2 * bucket_count(); }
  void place(const Slot& fresh);
  void grow();
  void clear();

  int bucket_bits_ = kMinBucketBits;
  size_t inserted_ = 0;        // since the table was allocated
  HugeArray<Slot> slots_;      // a bucket to a cache line, in huge pages where there are any
  HugeArray<uint32_t> arena_;  // ids, then for a long word its bytes
  size_t arena_used_ = 0;
};

}  // namespace millrace::tokenizer
