// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts a piece of text into words exactly as the regular expression of a tokenizer.json would, without a regular
// expression engine. The commonest patterns have hand-written scanners; most others become a table
// (pattern_automaton.h). Immutable, thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/words/block_scan.h"
#include "millrace/tokenizer/words/pattern_automaton.h"

namespace millrace::tokenizer {

// The expression by which ByteLevel splits: GPT-2's.
inline constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class WordScanner {
 public:
  // Returns a scanner that cuts by the matches of `pattern`, written as in the file, if there is one. Text between two
  // matches is a word too. An empty pattern makes a piece one word.
  static std::optional<WordScanner> find(std::string_view pattern);
  // Returns the hand-written scanner for `pattern`. Its matches are adjacent in any text.
  static std::optional<WordScanner> find_scanner(std::string_view pattern);

  // Returns whether there is no text between two matches, in any text.
  bool covers_all() const { return automaton_ == nullptr ? !looks_back_ : automaton_->covers_all(); }
  // Returns whether a word depends on the text before it. Then a piece must begin where a text does, or at a word of
  // the previous step.
  bool looks_back() const { return looks_back_; }

  // Fills `ends` with the ends of the words that follow `begin`, as offsets in `piece`, and returns their number; 0
  // only at the end of the piece. REQUIRES: `begin` is 0 or the last end that was returned, `ends` is not empty,
  // `memory` belongs to this piece.
  size_t next_words(std::string_view piece, size_t begin, std::span<size_t> ends, LookAroundMemory& memory) const;

 private:
  using Scan = size_t (*)(std::string_view, size_t, std::span<size_t>);
  friend class WordScannerChain;
  explicit WordScanner(Scan scan, bool looks_back = false) : scan_(scan), looks_back_(looks_back) {}
  explicit WordScanner(std::shared_ptr<const PatternAutomaton> automaton)
      : looks_back_(automaton->looks_around()), automaton_(std::move(automaton)) {}
  Scan scan_ = nullptr;
  bool looks_back_ = false;
  std::shared_ptr<const PatternAutomaton> automaton_;
  BlockScan blocks_ = nullptr;  // used besides the table
};

// Returns whether a step of this kind (Digits, Punctuation, WhitespaceSplit, CharDelimiterSplit) cuts at `c`.
bool is_split_at(const CharacterSplitSpec& spec, uint32_t c);

// A chain of scanners: each cuts the words of the previous one.
class WordScannerChain {
 public:
  static constexpr size_t kMost = 8;
  static constexpr size_t kFewest = 64;  // blocks are scanned if there is room for this many words

  // Builds the chain. Uses only the regular expression of a ByteLevel; later steps see each byte as the character that
  // spells it. Errors: unsupported (a step that does more than cut, a pattern that only Oniguruma supports).
  [[nodiscard]] static Result<WordScannerChain> build(std::span<const PreTokenizerSpec> steps);

  // Finds the words of one piece, from left to right. The chain and the text must outlive it.
  class Cursor {
   public:
    Cursor(const WordScannerChain& chain, std::string_view piece) : chain_(chain), piece_(piece) {
      ends_of_words_[0] = piece.size();
    }
    // Returns the next words as WordScanner::next_words does, from where the last call ended.
    size_t next(std::span<size_t> ends);

   private:
    size_t cut(size_t level, std::span<size_t> ends);

    const WordScannerChain& chain_;
    const std::string_view piece_;
    size_t at_ = 0;
    // [i]: the word that pre-tokenizer i is cutting
    std::array<size_t, kMost> begins_of_words_{}, ends_of_words_{};
    std::array<LookAroundMemory, kMost> memories_;
  };

 private:
  struct Step;
  std::vector<WordScanner> levels_;  // at least one
};

}  // namespace millrace::tokenizer
