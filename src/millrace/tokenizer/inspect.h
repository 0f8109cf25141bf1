// SPDX-License-Identifier: Apache-2.0
#pragma once

// Describes the contents of a tokenizer.json and how it is run, to explain why one file is slower than another.
// Tokenizer has the function that returns this.

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::tokenizer {

struct StepReport {
  std::string part;       // "normalizer" or "pre_tokenizer"
  std::string component;  // "Split"
  std::string pattern;    // what it looks for; empty when it looks for nothing
  std::string engine;     // "text", "scanner", "table", "Oniguruma"; empty for a step without a pattern
  bool is_linear = true;  // whether the pattern is known to take time linear in the text
};

struct Inspection {
  std::string model;  // "BPE"
  int64_t vocabulary = 0;
  int64_t merges = 0;
  int64_t added_tokens = 0;
  int64_t special_tokens = 0;
  int64_t id_limit = 0;  // 1 + the largest id
  std::vector<StepReport> steps;
  // "byte-level" (words of bytes through a cache), "units" (parts of text through a cache) or "general" (step by step,
  // several times slower); and why it is not byte-level, empty when it is.
  std::string way;
  std::string why;
};

}  // namespace millrace::tokenizer
