// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tokens that are found in the text before the model sees it ("<|endoftext|>"), and the pieces of text between them.
// They are numbered and matched as `tokenizers` does it, in its order of operations:
//  1. In the whole text, tokens with normalized = false; leftmost, then longest.
//  2. In each piece between those, once it is normalized, tokens with normalized = true, whose contents are normalized
//     too. A piece is a separate text: single_word, lstrip and rstrip take its ends for the text's ends.
// Immutable, thread-safe.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/models/vocabulary.h"

namespace millrace::tokenizer {

class Normalizer;

// Bytes [begin, end) of the text: the added token `id`, or text for the model when that is kNoToken.
struct Piece {
  size_t begin = 0, end = 0;
  uint32_t id = kNoToken;
};

// Tokens as a trie over bytes.
class TokenMatcher {
 public:
  struct Flags {
    bool single_word = false, lstrip = false, rstrip = false;
  };
  // False when there is such a token already. REQUIRES: `content` is not empty.
  bool add(std::string_view content, uint32_t id, Flags flags);
  bool empty() const { return nodes_.size() == 1; }
  // Whether `text` contains any of the tokens.
  bool finds_any(std::string_view text) const;
  // Appends the pieces of `whole`, a part of `text`, as `tokenizers` finds them.
  void split(std::string_view text, Piece whole, std::vector<Piece>& pieces) const;

 private:
  static constexpr size_t kFewStarts = 4;
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;
    uint32_t id = kNoToken;
    Flags flags;
  };
  // The first place at or behind `from` where some token may start.
  size_t next_start(std::string_view text, size_t from) const;
  // The longest token that starts at `at`, or nullptr.
  const Node* longest(std::string_view text, size_t at, size_t& end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<uint32_t, 256> first_{};  // by byte: the root's child; 0: none
  std::string starts_;                 // the bytes that tokens start with
};

class AddedTokens {
 public:
  // A token whose content is in `vocabulary` keeps that id; the others are numbered from vocabulary.size() in their
  // order, whatever the file says (a difference is logged).
  // Errors: invalid_argument (tokens that are empty or equal once they are normalized), those of Normalizer::apply.
  [[nodiscard]] static Result<AddedTokens> build(std::span<const AddedTokenSpec> tokens, const Vocabulary& vocabulary,
                                                 const Normalizer& normalizer);

  // Appends the non-empty pieces of `text`, cut at the tokens of the first (raw) or second (normalized) pass. They
  // cover the text from left to right; where a stripped space is also the start of the next token they overlap, as in
  // `tokenizers`.
  void split_raw(std::string_view text, std::vector<Piece>& pieces) const;
  void split_normalized(std::string_view text, std::vector<Piece>& pieces) const;
  // Both passes, for text that no normalizer changes.
  void split(std::string_view text, std::vector<Piece>& pieces) const;

  struct Token {
    std::string content;  // normalized, if the token is
    bool special = false;
  };
  // The added token of that id, or nullptr.
  const Token* find(uint32_t id) const {
    return id < index_of_id_.size() && index_of_id_[id] != kNoToken ? &tokens_[index_of_id_[id]] : nullptr;
  }
  uint32_t find(std::string_view content) const;

  // Tokens that `vocabulary` does not have.
  int64_t beyond_vocabulary() const { return beyond_vocabulary_; }
  // 1 + the largest id, 0 without tokens.
  int64_t id_limit() const { return static_cast<int64_t>(index_of_id_.size()); }

 private:
  AddedTokens() = default;

  std::vector<Token> tokens_;
  std::vector<uint32_t> index_of_id_;
  std::unordered_map<std::string, uint32_t> ids_;
  int64_t beyond_vocabulary_ = 0;
  TokenMatcher raw_, normalized_;
};

}  // namespace millrace::tokenizer
