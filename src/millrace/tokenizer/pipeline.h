// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a tokenizer, as from_json built them and Encoder runs them. Private to this folder. Immutable,
// thread-safe.

#include <string>

#include "millrace/base/hash.h"
#include "millrace/tokenizer/added_tokens.h"
#include "millrace/tokenizer/bpe.h"
#include "millrace/tokenizer/pretokenize.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/tokenizer_json.h"

namespace millrace::tokenizer {

struct Tokenizer::Impl {
  [[nodiscard]] static Result<std::unique_ptr<Impl>> build(std::string_view json);

  Bpe model;
  AddedTokens added_tokens;
  Pretokenizer pretokenizer;
  bool add_prefix_space;
  PostProcessorSpec post_processor;
  Hash128 hash;
};

}  // namespace millrace::tokenizer
