// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts a piece of text into words exactly where the regular expression of a tokenizer.json would, without a regular
// expression engine: the commonest patterns have hand-written scanners, most others become a table
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

// The expression that ByteLevel splits by: GPT-2's.
inline constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class WordScanner {
 public:
  // What cuts by the matches of `pattern` as the file has it, if there is one. What lies between two matches is a word
  // too. An empty pattern makes a piece one word.
  static std::optional<WordScanner> find(std::string_view pattern);
  // The hand-written scanner for `pattern`. Its matches lie side by side, whatever the text.
  static std::optional<WordScanner> find_scanner(std::string_view pattern);

  // Whether no text lies between two matches, whatever the text.
  bool covers_all() const { return automaton_ == nullptr ? !looks_back_ : automaton_->covers_all(); }
  // Whether a word depends on the text before it: the piece that is cut begins where a text does, or a word of the step
  // before this one.
  bool looks_back() const { return looks_back_; }

  // Fills `ends` with the ends of the words that follow `begin`, as offsets in `piece`, and returns how many it wrote.
  // 0 only at the end of the piece. REQUIRES: `begin` is 0 or the last end that was returned, `ends` is not empty,
  // `memory` is that of this piece.
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
  BlockScan blocks_ = nullptr;  // beside the table
};

// Whether a step of this kind (Digits, Punctuation, WhitespaceSplit, CharDelimiterSplit) cuts at `c`.
bool is_split_at(const CharacterSplitSpec& spec, uint32_t c);

// Scanners one after another: each cuts the words of the one before it.
class WordScannerChain {
 public:
  static constexpr size_t kMost = 8;
  static constexpr size_t kFewest = 64;  // with room for as many words, blocks are scanned

  // Uses only the regular expression of a ByteLevel; later steps see each byte as the character that spells it.
  // Errors: unsupported (a step that does more than cut, a pattern that only Oniguruma knows).
  [[nodiscard]] static Result<WordScannerChain> build(std::span<const PreTokenizerSpec> steps);

  // Finds the words of one piece, from left to right. The chain and the text must outlive it.
  class Cursor {
   public:
    Cursor(const WordScannerChain& chain, std::string_view piece) : chain_(chain), piece_(piece) {
      ends_of_words_[0] = piece.size();
    }
    // As WordScanner::next_words, from where the call before it ended.
    size_t next(std::span<size_t> ends);

   private:
    size_t cut(size_t level, std::span<size_t> ends);

    const WordScannerChain& chain_;
    const std::string_view piece_;
    size_t at_ = 0;
    // [i]: of the word that the pre-tokenizer i is cutting
    std::array<size_t, kMost> begins_of_words_{}, ends_of_words_{};
    std::array<LookAroundMemory, kMost> memories_;
  };

 private:
  struct Step;
  std::vector<WordScanner> levels_;  // at least one
};

}  // namespace millrace::tokenizer
