// SPDX-License-Identifier: Apache-2.0
#pragma once

// The pre-tokenizers of a tokenizer.json, one after another: normalized text is cut into words, some of which are
// changed on the way. A PreTokenizer is immutable and thread-safe; a Scratch belongs to one thread.

#include <memory>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/text/aligned_text.h"
#include "millrace/tokenizer/words/pattern.h"

namespace millrace::tokenizer {

// Bytes [begin, end) of a text, never none.
struct Word {
  size_t begin = 0, end = 0;
};

// A text and the words it is cut into, from left to right. What lies between them is gone.
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

  // Errors: those of Pattern::build.
  [[nodiscard]] static Result<PreTokenizer> build(std::span<const PreTokenizerSpec> specs);
  // The same for pre-tokenizers that only cut, and a ByteLevel among them, which does not spell the bytes here.
  // Errors: unsupported too (one that changes text).
  [[nodiscard]] static Result<PreTokenizer> build_of_bytes(std::span<const PreTokenizerSpec> specs);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  bool empty() const { return steps_.empty(); }
  // A step asks where in the input a word begins: `text` must be tracked.
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
