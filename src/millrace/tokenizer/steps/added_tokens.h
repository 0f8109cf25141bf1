// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tokens that are found in the text before the model sees it ("<|endoftext|>"), and the pieces of text between them.
// They are numbered and matched as in `tokenizers`, in its order of operations:
//  1. In the whole text, tokens with normalized = false; leftmost, then longest.
//  2. In each piece between those, after its normalization, tokens with normalized = true, whose contents are
//     normalized too. A piece counts as a separate text: single_word, lstrip and rstrip treat its ends as ends of the
//     text.
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

// Bytes [begin, end) of the text: the added token `id`, or text for the model if `id` is kNoToken.
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
  // Adds a token; returns false if it is there already. REQUIRES: `content` is not empty.
  bool add(std::string_view content, uint32_t id, Flags flags);
  bool empty() const { return nodes_.size() == 1; }
  // Returns whether `text` contains any of the tokens.
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
  // Returns the first place at or after `from` where a token may start.
  size_t next_start(std::string_view text, size_t from) const;
  // Returns the longest token that starts at `at`, or nullptr.
  const Node* longest(std::string_view text, size_t at, size_t& end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<uint32_t, 256> first_{};  // by byte: the root's child; 0: none
  std::string starts_;                 // the bytes that tokens start with
};

class AddedTokens {
 public:
  // Numbers the tokens. A token whose content is in `vocabulary` keeps that id. The others are numbered from
  // vocabulary.size() in their order, regardless of the file's ids (a difference is logged). Errors: invalid_argument
  // (tokens that are empty or equal once they are normalized), those of Normalizer::apply.
  [[nodiscard]] static Result<AddedTokens> build(std::span<const AddedTokenSpec> tokens, const Vocabulary& vocabulary,
                                                 const Normalizer& normalizer);

  // Append the non-empty pieces of `text`, cut at the tokens of the first (raw) or second (normalized) pass. They
  // cover the text from left to right. Two pieces overlap if a stripped space is also the start of the next token, as
  // in `tokenizers`.
  void split_raw(std::string_view text, std::vector<Piece>& pieces) const;
  void split_normalized(std::string_view text, std::vector<Piece>& pieces) const;
  // Does both passes, for text that no normalizer changes.
  void split(std::string_view text, std::vector<Piece>& pieces) const;

  struct Token {
    std::string content;  // normalized, if the token has normalized = true
    bool special = false;
  };
  // Returns the added token with this id, or nullptr.
  const Token* find(uint32_t id) const {
    return id < index_of_id_.size() && index_of_id_[id] != kNoToken ? &tokens_[index_of_id_[id]] : nullptr;
  }
  uint32_t find(std::string_view content) const;

  // Returns the number of tokens that `vocabulary` does not have.
  int64_t beyond_vocabulary() const { return beyond_vocabulary_; }
  // Returns 1 + the largest id; 0 without tokens.
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
