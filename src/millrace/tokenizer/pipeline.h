// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a tokenizer, as from_json built them and Encoder runs them. Private to this folder. Immutable,
// thread-safe.

#include <memory>
#include <optional>

#include "millrace/base/hash.h"
#include "millrace/tokenizer/added_tokens.h"
#include "millrace/tokenizer/byte_bpe.h"
#include "millrace/tokenizer/cutter.h"
#include "millrace/tokenizer/decoder.h"
#include "millrace/tokenizer/model.h"
#include "millrace/tokenizer/normalizer.h"
#include "millrace/tokenizer/pretokenize.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/tokenizer_json.h"
#include "millrace/tokenizer/unit_path.h"

namespace millrace::tokenizer {

// The usual shape of a large language model's file, for ids alone: words are found in the text as it is, and their
// bytes are what the model merges.
struct ByteLevelPath {
  Pretokenizer words;
  bool add_prefix_space;
  ByteBpe model;
};

struct Tokenizer::Impl {
  [[nodiscard]] static Result<std::unique_ptr<Impl>> build(std::string_view json);

  AddedTokens added_tokens;
  Normalizer normalizer;
  Cutter cutter;
  std::unique_ptr<const Model> model;
  PostProcessorSpec post_processor;
  Decoder decoder;
  std::optional<ByteLevelPath> byte_level;
  std::optional<UnitPath> units;
  Hash128 hash;
};

}  // namespace millrace::tokenizer
