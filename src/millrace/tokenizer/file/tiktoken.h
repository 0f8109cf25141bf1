// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files of the package tiktoken: lines of a token in base64, a blank and its rank, which is its id. Kimi ships
// tiktoken.model, OpenAI NAME.tiktoken. They hold no expression that cuts a text into words and no special tokens, so
// those come from elsewhere. No I/O.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::tokenizer {

// Facts that such a file lacks.
struct TiktokenFacts {
  std::string pattern;
  std::vector<std::pair<std::string, uint32_t>> special_tokens;
};

// Whether `file` begins as such a file does. A tokenizer.json does not.
bool is_tiktoken(std::string_view file);

// The encodings of tiktoken 0.9 by name: "cl100k_base", "o200k_base", "p50k_base", "r50k_base".
std::optional<TiktokenFacts> tiktoken_encoding(std::string_view name);

// `pat_str` of a program in Python, such as Kimi's tokenization_kimi.py: a string, or "|".join of a list of them.
std::optional<std::string> pattern_in_python(std::string_view program);

// A tokenizer.json that gives the ids of tiktoken with all special tokens allowed. Every pair of tokens whose bytes are
// a token merges at that token's rank. `name` is for messages. Errors: invalid_argument (a line that is none, a token
// or rank that comes twice, a byte without a token, a special token with the id of another one, an expression that a
// tokenizer.json cannot hold).
[[nodiscard]] Result<std::string> tokenizer_json_of(std::string_view file, const TiktokenFacts& facts,
                                                    std::string_view name);

}  // namespace millrace::tokenizer
