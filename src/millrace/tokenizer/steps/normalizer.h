// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the normalizers of a tokenizer.json, one after another, to turn a piece of the input into the text that is cut
// into words. A Normalizer is immutable and thread-safe; a Scratch belongs to one thread.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/text/aligned_text.h"

namespace millrace::tokenizer {

class Pattern;

class Normalizer {
 public:
  struct Scratch {
    Scratch();
    ~Scratch();
    AlignedText spare;
    std::string bytes;
    std::vector<NormalizedChar> chars;
    std::vector<struct Part> parts;
  };

  // Builds the normalizers. Errors: invalid_argument (a damaged precompiled map, an invalid regular expression),
  // unsupported (pattern.h).
  [[nodiscard]] static Result<Normalizer> build(std::span<const NormalizerSpec> specs);
  Normalizer(Normalizer&&) noexcept;
  Normalizer& operator=(Normalizer&&) noexcept;
  ~Normalizer();

  bool empty() const { return steps_.empty(); }
  // Replaces `text` by its normalized form. Errors: those of Pattern::find_all.
  [[nodiscard]] Status apply(AlignedText& text, Scratch& scratch) const;

 private:
  class Step;
  struct Steps;
  Normalizer();
  std::vector<std::unique_ptr<const Step>> steps_;
};

// Appends to `out` the text of `in` with every match of `pattern` replaced by `content`.
[[nodiscard]] Status replace_matches(const Pattern& pattern, std::string_view content, const AlignedText& in,
                                     std::vector<Part>& parts, AlignedText& out);

}  // namespace millrace::tokenizer
