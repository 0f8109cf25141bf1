// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the pre-tokenizers of a tokenizer.json, one after another, to cut normalized text into words. Some steps also
// change the words. A PreTokenizer is immutable and thread-safe; a Scratch belongs to one thread.

#include <memory>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/text/aligned_text.h"
#include "millrace/tokenizer/words/pattern.h"

namespace millrace::tokenizer {

// Bytes [begin, end) of a text; never empty.
struct Word {
  size_t begin = 0, end = 0;
};

// A text and the words that it is cut into, from left to right. Text between the words is dropped.
struct CutText {
  AlignedText text;
  std::vector<Word> words;
};

class PreTokenizer {
 public:
  struct Scratch {
    CutText spare;
    std::vector<Part> parts;
    AlignedText piece;
  };

  // Builds the pre-tokenizers. Errors: those of Pattern::build.
  [[nodiscard]] static Result<PreTokenizer> build(std::span<const PreTokenizerSpec> specs);
  // Builds the pre-tokenizers to cut unchanged bytes: a ByteLevel among them does not spell the bytes. Errors: also
  // unsupported (a step that changes text).
  [[nodiscard]] static Result<PreTokenizer> build_of_bytes(std::span<const PreTokenizerSpec> specs);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  bool empty() const { return steps_.empty(); }
  // Returns whether a step needs to know where in the input a word begins. Then `text` must be tracked.
  bool needs_origins() const { return needs_origins_; }
  // Cuts the words of `text` further. Errors: those of Pattern::find_all.
  [[nodiscard]] Status apply(CutText& text, Scratch& scratch) const;

 private:
  class Step;
  struct Steps;
  PreTokenizer();
  std::vector<std::unique_ptr<const Step>> steps_;
  bool needs_origins_ = false;
};

}  // namespace millrace::tokenizer
