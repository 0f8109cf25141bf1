// SPDX-License-Identifier: Apache-2.0
#pragma once

// WordPiece: the longest token that the word begins with, again and again. WordLevel: the word is a token or unknown.
// Immutable, thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/models/byte_trie.h"
#include "millrace/tokenizer/models/model.h"

namespace millrace::tokenizer {

class WordLevel : public Model {
 public:
  WordLevel(Vocabulary vocabulary, std::string unk_token);
  [[nodiscard]] Status encode_word(std::string_view word, Scratch&, std::vector<ModelToken>& tokens) const override;
  uint32_t unk_id() const { return unk_id_; }  // or kNoToken

 protected:
  [[nodiscard]] Status add_unknown(std::string_view word, std::vector<ModelToken>& tokens) const;

 private:
  std::string unk_token_;
  uint32_t unk_id_;
};

class WordPiece final : public WordLevel {
 public:
  WordPiece(Vocabulary vocabulary, const WordPieceSpec& spec);
  [[nodiscard]] Status encode_word(std::string_view word, Scratch& scratch,
                                   std::vector<ModelToken>& tokens) const override;

  // Whether encode_short does for `word`: it is not so long that its characters have to be counted, and there is a
  // token for what is unknown.
  bool takes(std::string_view word) const { return word.size() <= max_characters_ && unk_id() != kNoToken; }
  // Appends the ids of a word. REQUIRES: takes(word).
  void encode_short(std::string_view word, std::vector<uint32_t>& ids) const;
  // The tokens that begin with one character.
  struct Beginning {
    uint32_t id = kNoToken;  // of the token that is the character
    uint64_t longer = 0;     // a bit for the lowest six bits of each character that is next in a longer one
  };
  // At the begin of a word (is_first), or behind other tokens.
  Beginning beginning_with(std::string_view character, bool is_first) const;
  // The longest token that word[begin, ...) begins with behind other tokens. REQUIRES: there is one.
  ModelToken longest_token(std::string_view word, size_t begin) const;

 private:
  // A node of a ByteTrie in eight bytes, twice as many to a cache line: a walk waits for each line.
  struct Node {
    uint32_t base;
    uint32_t parent_and_key;  // twice the parent, and 1 where a token ends
  };
  // Where a token ends: in the trie, and behind which byte of a word.
  struct Found {
    uint32_t node = ByteTrie::kNone;
    size_t end = 0;
  };
  uint32_t next(uint32_t node, uint8_t byte) const {
    const uint32_t child = nodes_[node].base + byte;
    return nodes_[child].parent_and_key >> 1 == node ? child : ByteTrie::kNone;
  }
  uint64_t characters_behind(uint32_t node, uint32_t missing_bytes) const;
  Found longest(uint32_t node, std::string_view word, size_t begin) const;

  uint64_t max_characters_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> ids_;  // by node
  uint32_t continuation_;      // the node that the prefix of all but a word's first token leads to
};

}  // namespace millrace::tokenizer
