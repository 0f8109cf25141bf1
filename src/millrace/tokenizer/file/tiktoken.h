// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files of the package tiktoken. Each line holds a token in base64, a blank and its rank, which is its id. Kimi ships
// tiktoken.model, OpenAI NAME.tiktoken. The files lack the expression that cuts text into words, and the special
// tokens; these come from elsewhere. No I/O.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::tokenizer {

// Facts that a tiktoken file lacks.
struct TiktokenFacts {
  std::string pattern;
  std::vector<std::pair<std::string, uint32_t>> special_tokens;
};

// Returns whether `file` begins like a tiktoken file. A tokenizer.json does not.
bool is_tiktoken(std::string_view file);

// Returns an encoding of tiktoken 0.9 by name: "cl100k_base", "o200k_base", "p50k_base", "r50k_base".
std::optional<TiktokenFacts> tiktoken_encoding(std::string_view name);

// Returns `pat_str` of a Python program such as Kimi's tokenization_kimi.py: a string, or "|".join of a list of
// strings.
std::optional<std::string> pattern_in_python(std::string_view program);

// Returns a tokenizer.json that gives the ids of tiktoken with all special tokens allowed. Two tokens merge if their
// joined bytes are a token; its rank is the rank of the merge. `name` is for messages. Errors: invalid_argument (a
// malformed line, a token or rank that comes twice, a byte without a token, a special token with the id of another
// one, an expression that a tokenizer.json cannot hold).
[[nodiscard]] Result<std::string> tokenizer_json_of(std::string_view file, const TiktokenFacts& facts,
                                                    std::string_view name);

}  // namespace millrace::tokenizer
