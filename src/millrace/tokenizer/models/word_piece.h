// SPDX-License-Identifier: Apache-2.0
#pragma once

// WordPiece repeatedly takes the longest token that the rest of the word begins with. WordLevel: the word is a token
// or unknown. Immutable, thread-safe.

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
  uint32_t unk_id() const { return unk_id_; }  // kNoToken: none

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

  // Returns whether encode_short works for `word`: the word is so short that its characters need not be counted, and
  // the model has an unknown token.
  bool takes(std::string_view word) const { return word.size() <= max_characters_ && unk_id() != kNoToken; }
  // Appends the ids of a word. REQUIRES: takes(word).
  void encode_short(std::string_view word, std::vector<uint32_t>& ids) const;
  // The tokens that begin with one character.
  struct Beginning {
    uint32_t id = kNoToken;  // the token that is the character itself
    uint64_t longer = 0;     // one bit for the lowest six bits of each character that comes next in a longer token
  };
  // Returns the tokens that begin with `character`, at the beginning of a word (is_first) or after other tokens.
  Beginning beginning_with(std::string_view character, bool is_first) const;
  // Returns the longest token at word[begin, ...), after other tokens. REQUIRES: there is one.
  ModelToken longest_token(std::string_view word, size_t begin) const;

 private:
  // A node of a ByteTrie in eight bytes, so that a cache line holds twice as many: a walk waits for each line.
  struct Node {
    uint32_t base;
    uint32_t parent_and_key;  // twice the parent, plus 1 if a token ends here
  };
  // The end of a token: its node in the trie, and the offset after it in the word.
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
  uint32_t continuation_;      // the node after the prefix of all tokens but a word's first
};

}  // namespace millrace::tokenizer
