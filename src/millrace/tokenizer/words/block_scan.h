// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the words of known patterns, 64 bytes at a time. The classes of the characters become bit masks, with one bit
// for each character; non-ASCII characters are looked up one by one. Shifts and sums of the masks give the beginnings
// of words, without a branch for each word. If a block cannot decide (a word longer than it, bytes that are not
// UTF-8), the scanner of word_scanner.cpp finds one word at a time. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::tokenizer {

// The patterns of word_scanner.cpp.
enum class Grammar { kGpt2, kLlama3, kQwen2, kO200k, kTekken };

// Returns the end of the word that starts at `p`.
using EndOfWord = const uint8_t* (*)(const uint8_t* p, const uint8_t* end, const void* context);

// The rules of a grammar.
struct WordRules {
  EndOfWord end_of_word;
  const void* context;     // for end_of_word
  const uint8_t* classes;  // code_point_classes() or a similar table; classes_with_case() for kO200k and kTekken
};

// Writes the ends of the words that follow `begin` to ends[0, limit) and returns their number; 0 only at the end.
// REQUIRES: limit >= 64.
using BlockScan = size_t (*)(const uint8_t* piece, size_t size, size_t begin, const WordRules& rules, size_t* ends,
                             size_t limit);

// Returns the fastest scan, or nullptr if this processor has no fast one.
BlockScan find_block_scan(Grammar grammar);

// Returns all scans that this processor can run, the fastest first. For tests.
std::span<const BlockScan> all_block_scans(Grammar grammar);

}  // namespace millrace::tokenizer
