// SPDX-License-Identifier: Apache-2.0
#pragma once

// Looks up many words at once. Nine of ten words have at most eight bytes. These steps take most of the time for
// repetitive text, so they handle eight words per vector on processors that can. Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/tokenizer/fast/word_key.h"
#include "millrace/tokenizer/fast/word_table.h"

namespace millrace::tokenizer {

// The words of a text from left to right; no word is empty.
struct WordBatch {
  static constexpr size_t kMost = 256;

  const char* text;
  const size_t *begins, *ends;  // bounds of each word in the text
  size_t size;                  // at most kMost
  const char* readable_end;     // memory may be read up to here

  std::string_view operator[](size_t i) const { return {text + begins[i], ends[i] - begins[i]}; }
};

// A slot of a short word. Four share a cache line, so that frequent words stay in the cache.
struct ShortSlot {
  ShortKey key;
  PackedIds ids;
  bool is_empty() const { return key.bits == 0; }
  uint64_t hash() const { return key.hash(); }
};
static_assert(sizeof(ShortSlot) == 16);
using ShortTable = WordTable<ShortSlot>;

// Returns the ids of a word in `line` or a later line, or none. A key of zero has none.
PackedIds find_short(const ShortTable& table, const ShortSlot* line, ShortKey key);

// A batch between look_ahead and find.
struct ShortBatch {
  std::array<ShortKey, WordBatch::kMost> keys;           // zero for long words
  std::array<const ShortSlot*, WordBatch::kMost> lines;  // an empty line for long words
  std::array<uint32_t, WordBatch::kMost + 8> longs;      // indices of the long words
  size_t long_count;
};

struct BatchSteps {
  // Prefetches the lines of all words while the next ones are computed.
  void (*look_ahead)(const WordBatch& words, const ShortTable& table, ShortBatch& batch);
  // Writes the ids of each word to `found`, none for long words. REQUIRES: no insert since look_ahead.
  void (*find)(size_t words, const ShortTable& table, const ShortBatch& batch, PackedIds* found);
};

// Returns the fastest steps that this processor can run.
const BatchSteps& batch_steps();

// Returns all steps that this processor can run, the fastest first. For tests.
std::span<const BatchSteps> all_batch_steps();

}  // namespace millrace::tokenizer
