// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns one word into tokens. Implementations: char_bpe.h, unigram.cpp, word_piece.cpp (and WordLevel). byte_bpe.h is
// the fast form of byte-level BPE and gives ids only. Immutable, thread-safe; a Scratch belongs to one thread.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/models/merges.h"
#include "millrace/tokenizer/models/vocabulary.h"

namespace millrace::tokenizer {

// A token and the bytes [begin, end) of the word that it covers.
struct ModelToken {
  uint32_t id = kNoToken;
  uint32_t begin = 0, end = 0;
};

class Model {
 public:
  struct Scratch {
    MergeScratch merge;
    std::string affixed;  // a symbol with its prefix and suffix
    struct BestPath {
      double score = 0;
      uint32_t begin = 0;
      uint32_t node = UINT32_MAX;  // where its last token ends; UINT32_MAX: not reached
    };
    std::vector<BestPath> paths;  // for each byte of a word, the best way to reach it
  };
  virtual ~Model() = default;

  // Appends the tokens of `word`. REQUIRES: it is not empty and shorter than 4 GiB. Errors: invalid_argument (a part
  // of the word is in no token, and the model has no unknown token).
  [[nodiscard]] virtual Status encode_word(std::string_view word, Scratch& scratch,
                                           std::vector<ModelToken>& tokens) const = 0;
  // Returns the text that `tokenizers` uses for the token when it trims white space off offsets.
  virtual std::string_view text_of(const ModelToken& token, std::string_view) const {
    return vocabulary().token(token.id);
  }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

 private:
  Vocabulary vocabulary_;
};

// Build the model of a file. Errors: invalid_argument (a merge of tokens that do not exist), unsupported
// (vocabulary.h).
[[nodiscard]] Result<std::unique_ptr<const Model>> make_model(const ModelSpec& spec);
[[nodiscard]] Result<std::unique_ptr<const Model>> make_unigram(const UnigramSpec& spec);
[[nodiscard]] Result<std::unique_ptr<const Model>> make_word_piece(const WordPieceSpec& spec);
[[nodiscard]] Result<std::unique_ptr<const Model>> make_word_level(const WordLevelSpec& spec);

}  // namespace millrace::tokenizer
