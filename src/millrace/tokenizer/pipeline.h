// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a tokenizer, built by from_json and run by Encoder. Private to this folder. Immutable, thread-safe.

#include <memory>
#include <optional>
#include <variant>

#include "millrace/base/hash/hash.h"
#include "millrace/tokenizer/fast/byte_bpe.h"
#include "millrace/tokenizer/fast/shared_words.h"
#include "millrace/tokenizer/fast/unit_path.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/inspect.h"
#include "millrace/tokenizer/models/model.h"
#include "millrace/tokenizer/steps/added_tokens.h"
#include "millrace/tokenizer/steps/decoder.h"
#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/steps/pre_tokenizer.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/words/word_scanner.h"

namespace millrace::tokenizer {

// The fast path for the usual file of a large language model, for ids only: cuts words from the unchanged text and
// merges their bytes.
struct ByteLevelPath {
  std::variant<WordScannerChain, PreTokenizer> words;  // WordScannerChain if there is no text between its words
  bool add_prefix_space;
  ByteBpe model;
};

struct Tokenizer::Impl {
  [[nodiscard]] static Result<std::unique_ptr<Impl>> build(std::string_view json);
  [[nodiscard]] static Result<Inspection> inspect(std::string_view json);

  AddedTokens added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const Model> model;
  PostProcessorSpec post_processor;
  Decoder decoder;
  std::optional<ByteLevelPath> byte_level;
  std::optional<UnitPath> units;
  std::string why_not_byte_level;  // empty when byte_level is set
  Hash128 hash;
  std::unique_ptr<SharedWords> shared_words = std::make_unique<SharedWords>();  // shared by all encoders
};

}  // namespace millrace::tokenizer
