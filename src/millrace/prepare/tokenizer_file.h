// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds and reads the file of a tokenizer: a tokenizer.json, or a file of tiktoken with what it lacks beside it.

#include <memory>
#include <string>

#include "millrace/base/status.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::prepare {

// The text of the tokenizer.json at `url`. For a file of tiktoken (tokenizer/file/tiktoken.h), of the tokenizer.json
// that gives its ids. The expression then comes from, in this order: NAME.pattern beside it, which holds the expression
// or the name of an encoding of tiktoken; the encoding that the file is named after (cl100k_base.tiktoken); a program
// tokenization_*.py beside it, as Kimi has. Special tokens come from a tokenizer_config.json beside it
// (`added_tokens_decoder`), else from the named encoding. Errors: not_found, invalid_argument (no expression; the ways
// to give one), those of reading.
[[nodiscard]] Result<std::string> read_tokenizer(const std::string& url);

// The same, loaded. Errors: those of Tokenizer::from_json too.
[[nodiscard]] Result<std::shared_ptr<const tokenizer::Tokenizer>> load_tokenizer(const std::string& url);

}  // namespace millrace::prepare
