// SPDX-License-Identifier: Apache-2.0
#pragma once

// The look-up of many words at once, of which nine of ten have at most eight bytes: the steps that take most of the
// time of text that repeats itself, eight words a vector where the processor has such. Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/tokenizer/fast/word_key.h"
#include "millrace/tokenizer/fast/word_table.h"

namespace millrace::tokenizer {

// Words of a text from left to right, none of them empty.
struct WordBatch {
  static constexpr size_t kMost = 256;

  const char* text;
  const size_t *begins, *ends;  // of each in the text
  size_t size;                  // at most kMost
  const char* readable_end;     // how far memory may be read

  std::string_view operator[](size_t i) const { return {text + begins[i], ends[i] - begins[i]}; }
};

// Four to a cache line, so that those that are met often stay near the processor.
struct ShortSlot {
  ShortKey key;
  PackedIds ids;
  bool is_empty() const { return key.bits == 0; }
  uint64_t hash() const { return key.hash(); }
};
static_assert(sizeof(ShortSlot) == 16);
using ShortTable = WordTable<ShortSlot>;

// The ids of a word that is in `line` or behind it, or none; of a key of zero none.
PackedIds find_short(const ShortTable& table, const ShortSlot* line, ShortKey key);

// A batch on its way.
struct ShortBatch {
  std::array<ShortKey, WordBatch::kMost> keys;           // zero for long words
  std::array<const ShortSlot*, WordBatch::kMost> lines;  // for long words an empty one
  std::array<uint32_t, WordBatch::kMost + 8> longs;      // which words are long
  size_t long_count;
};

struct BatchSteps {
  // Has memory bring the lines of all words while the next ones are computed.
  void (*look_ahead)(const WordBatch& words, const ShortTable& table, ShortBatch& batch);
  // The ids of each word, none for long ones. REQUIRES: no insert since look_ahead.
  void (*find)(size_t words, const ShortTable& table, const ShortBatch& batch, PackedIds* found);
};

// The fastest that this processor can run.
const BatchSteps& batch_steps();

// For tests: all that it can run, the fastest first.
std::span<const BatchSteps> all_batch_steps();

}  // namespace millrace::tokenizer
