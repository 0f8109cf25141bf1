// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds and reads a tokenizer's file: a tokenizer.json, or a tiktoken file with the files beside it that complete it.

#include <memory>
#include <string>

#include "millrace/base/status.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::prepare {

// Returns the text of the tokenizer.json at `url`. For a tiktoken file (tokenizer/file/tiktoken.h), returns a
// tokenizer.json that gives the same ids. That needs an expression, taken from the first of these: NAME.pattern beside
// the file, which holds the expression or the name of a tiktoken encoding; the encoding that the file is named after
// (cl100k_base.tiktoken); a program tokenization_*.py beside it, as Kimi has. Special tokens come from a
// tokenizer_config.json beside it (`added_tokens_decoder`), else from the named encoding. Errors: not_found,
// invalid_argument (no expression; the ways to give one), those of reading.
[[nodiscard]] Result<std::string> read_tokenizer(const std::string& url);

// Reads the tokenizer and loads it. Errors: those of Tokenizer::from_json too.
[[nodiscard]] Result<std::shared_ptr<const tokenizer::Tokenizer>> load_tokenizer(const std::string& url);

}  // namespace millrace::prepare
