// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ids of short words that any thread has computed for a tokenizer. This is the second level after the threads' own
// word caches, so that a word is merged once and not once per thread. Thread-safe, without locks.

#include <atomic>
#include <cstdint>

#include "millrace/base/memory/huge_array.h"
#include "millrace/tokenizer/fast/word_key.h"
#include "millrace/tokenizer/fast/word_table.h"

namespace millrace::tokenizer {

// A table of 16 MiB with one place for each hash. A new word replaces the old one at its place. Holds words of up to
// 15 bytes with up to three ids. Pages that no word has touched use no memory.
class SharedWords {
 public:
  static constexpr int kSlotBits = 19;

  SharedWords() : slots_(make_huge_array<Slot>(size_t{1} << kSlotBits)) {}

  // One word cache that uses the table. The table must outlive it.
  class User {
   public:
    explicit User(SharedWords& words) : words_(words) { words_.users_.fetch_add(1, std::memory_order_relaxed); }
    ~User() { words_.users_.fetch_sub(1, std::memory_order_relaxed); }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    // Returns whether other caches use the table too. A single cache would find only its own words in it.
    bool is_shared() const { return words_.users_.load(std::memory_order_relaxed) > 1; }
    // Prefetches the place of a word. REQUIRES here and below: key.is_inline().
    void prefetch(const WordKey& key) const { __builtin_prefetch(&words_.slot(key)); }
    // Returns the ids of a word, or none.
    PackedIds find(const WordKey& key) const;
    // Inserts a word, unless another thread is writing to its place. REQUIRES: `ids` are inline.
    void insert(const WordKey& key, PackedIds ids);

   private:
    SharedWords& words_;
  };

 private:
  // A sequence lock: `version` is odd while the other fields are written. A reader that sees the same even version
  // before and after has read the data of one writer. In a process forked during a write, the version stays odd, so
  // that the place stays empty.
  struct Slot {
    uint64_t version;
    uint64_t low, high;  // the key
    uint64_t ids;
  };
  static_assert(sizeof(Slot) == 32);

  Slot& slot(const WordKey& key) const { return slots_[key.hash() >> (64 - kSlotBits)]; }

  HugeArray<Slot> slots_;
  std::atomic<int> users_ = 0;
};

}  // namespace millrace::tokenizer
