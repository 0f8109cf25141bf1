// SPDX-License-Identifier: Apache-2.0
#pragma once

// A tokenizer.json read into plain structs. This file knows JSON and which components exist; it refuses by name what
// this version does not do and builds nothing. Another model, normalizer or pre-tokenizer adds its struct here.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::tokenizer {

struct AddedTokenSpec {
  std::string content;
  uint32_t id = 0;  // what the file says; `tokenizers` numbers them anew (see added_tokens.h)
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// What comes before the model: an optional regular expression, then the byte map.
struct PretokenizerSpec {
  std::string pattern;            // empty: a piece is one word
  bool add_prefix_space = false;  // a piece that does not start with a space gets one
};

struct BpeSpec {
  std::vector<std::pair<std::string_view, uint32_t>> vocab;
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // by rank
  bool ignore_merges = false;
  // The first setting that would change the ids of characters outside the vocabulary ("unk_token"); empty: none.
  std::string out_of_vocabulary_rule;
};

struct PostProcessorSpec {
  std::vector<bool> trims;       // one trimming of offsets each, with its add_prefix_space
  std::vector<uint32_t> before;  // ids around the text when special tokens are asked for
  std::vector<uint32_t> after;
};

struct TokenizerSpec {
  std::vector<AddedTokenSpec> added_tokens;
  PretokenizerSpec pretokenizer;
  BpeSpec model;
  PostProcessorSpec post_processor;
  std::shared_ptr<const void> storage;  // what the string_views point into
};

// Errors: invalid_argument (not JSON, a field missing or of a wrong type; the place), unsupported (the component's
// name).
[[nodiscard]] Result<TokenizerSpec> parse_tokenizer_json(std::string_view json);

}  // namespace millrace::tokenizer
