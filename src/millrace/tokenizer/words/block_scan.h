// SPDX-License-Identifier: Apache-2.0
#pragma once

// Words of the known patterns, found 64 bytes at a time. The classes of the characters become bit masks (a bit for each
// character; those that are not ASCII are looked up one by one), and where words begin follows from them by shifts and
// sums, without a branch for each word. What a block can't decide (words longer than it, bytes that are no UTF-8) goes
// to the scanner of word_scanner.cpp, one word at a time. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::tokenizer {

// The patterns of word_scanner.cpp.
enum class Grammar { kGpt2, kLlama3, kQwen2, kO200k, kTekken };

// The end of the word that starts at `p`.
using EndOfWord = const uint8_t* (*)(const uint8_t* p, const uint8_t* end, const void* context);

// Rules that belong to a grammar.
struct WordRules {
  EndOfWord end_of_word;
  const void* context;     // for end_of_word
  const uint8_t* classes;  // code_point_classes() or one like it; classes_with_case() for kO200k and kTekken
};

// Writes the ends of the words that follow `begin` to ends[0, limit) and returns how many it wrote; 0 only at the end.
// REQUIRES: limit >= 64.
using BlockScan = size_t (*)(const uint8_t* piece, size_t size, size_t begin, const WordRules& rules, size_t* ends,
                             size_t limit);

// nullptr when this processor has no fast one.
BlockScan find_block_scan(Grammar grammar);

// For tests: all that this processor can run, the fastest first.
std::span<const BlockScan> all_block_scans(Grammar grammar);

}  // namespace millrace::tokenizer
