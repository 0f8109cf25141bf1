// SPDX-License-Identifier: Apache-2.0
#pragma once

// Describes the contents of a tokenizer.json and how it is run, to explain why one file is slower than another.
// Returned by Tokenizer::inspect.

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::tokenizer {

struct StepReport {
  std::string part;       // "normalizer" or "pre_tokenizer"
  std::string component;  // "Split"
  std::string pattern;    // the pattern that the step searches for; empty if it has none
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
  // `way`: "byte-level" (words of bytes through a cache), "units" (parts of text through a cache) or "general" (step
  // by step, several times slower). `why`: why the way is not byte-level; empty if it is.
  std::string way;
  std::string why;
};

}  // namespace millrace::tokenizer
