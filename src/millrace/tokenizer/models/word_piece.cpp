// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/models/word_piece.h"

#include "millrace/tokenizer/models/char_bpe.h"
#include "millrace/tokenizer/text/aligned_text.h"

namespace millrace::tokenizer {

WordLevel::WordLevel(Vocabulary vocabulary, std::string unk_token)
    : Model(std::move(vocabulary)), unk_token_(std::move(unk_token)), unk_id_(this->vocabulary().find(unk_token_)) {}

Status WordLevel::encode_word(std::string_view word, Scratch&, std::vector<ModelToken>& tokens) const {
  const uint32_t id = vocabulary().find(word);
  if (id == kNoToken) return add_unknown(word, tokens);
  tokens.push_back({id, 0, static_cast<uint32_t>(word.size())});
  return {};
}

Status WordLevel::add_unknown(std::string_view word, std::vector<ModelToken>& tokens) const {
  if (unk_id_ == kNoToken)
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is unknown, and so is the unk_token \"{}\"", word.substr(0, 100),
                unk_token_);
  tokens.push_back({unk_id_, 0, static_cast<uint32_t>(word.size())});
  return {};
}

WordPiece::WordPiece(Vocabulary vocabulary, const WordPieceSpec& spec)
    : WordLevel(std::move(vocabulary), spec.unk_token),
      max_characters_(spec.max_input_chars_per_word),
      continuation_(ByteTrie::kRoot) {
  const ByteTrie trie(spec.vocab);
  nodes_.reserve(trie.node_count());
  ids_.reserve(trie.node_count());
  for (uint32_t node = 0; node < trie.node_count(); ++node) {
    nodes_.push_back({trie.base(node), trie.parent(node) << 1 | uint32_t{trie.ends_key(node)}});
    ids_.push_back(trie.value(node));
  }
  for (const char b : spec.continuing_subword_prefix)
    if (continuation_ != ByteTrie::kNone) continuation_ = next(continuation_, static_cast<uint8_t>(b));
}

Status WordPiece::encode_word(std::string_view word, Scratch&, std::vector<ModelToken>& tokens) const {
  uint64_t characters = 0;
  for (const char b : word) characters += (static_cast<uint8_t>(b) & 0xC0) != 0x80;
  if (characters > max_characters_) return add_unknown(word, tokens);
  const size_t first = tokens.size();
  for (size_t begin = 0; begin < word.size();) {
    const Found found = longest(begin > 0 ? continuation_ : ByteTrie::kRoot, word, begin);
    if (found.node == ByteTrie::kNone) {
      tokens.resize(first);
      return add_unknown(word, tokens);
    }
    tokens.push_back({ids_[found.node], static_cast<uint32_t>(begin), static_cast<uint32_t>(found.end)});
    begin = found.end;
  }
  return {};
}

void WordPiece::encode_short(std::string_view word, std::vector<uint32_t>& ids) const {
  const size_t first = ids.size();
  ids.resize(first + word.size());
  uint32_t* id = ids.data() + first;
  for (size_t begin = 0; begin < word.size();) {
    const Found found = longest(begin > 0 ? continuation_ : ByteTrie::kRoot, word, begin);
    if (found.node == ByteTrie::kNone) {
      id = ids.data() + first;
      *id++ = unk_id();
      break;
    }
    *id++ = ids_[found.node];
    begin = found.end;
  }
  ids.resize(static_cast<size_t>(id - ids.data()));
}

WordPiece::Beginning WordPiece::beginning_with(std::string_view character, bool is_first) const {
  uint32_t node = is_first ? ByteTrie::kRoot : continuation_;
  for (const char b : character)
    if (node != ByteTrie::kNone) node = next(node, static_cast<uint8_t>(b));
  if (node == ByteTrie::kNone) return {};
  const bool is_token = nodes_[node].parent_and_key & 1;
  return {is_token ? ids_[node] : kNoToken, characters_behind(node, 0)};
}

// The number of bytes that are missing of a character that has begun.
uint64_t WordPiece::characters_behind(uint32_t node, uint32_t missing_bytes) const {
  if (nodes_[node].base == 0) return 0;
  uint64_t found = 0;
  for (uint32_t b = 0; b < 256; ++b) {
    const uint32_t child = next(node, static_cast<uint8_t>(b));
    if (child == ByteTrie::kNone) continue;
    const uint32_t size = b < 0xC0 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    const uint32_t missing = (missing_bytes > 0 ? missing_bytes : size) - 1;
    found |= missing == 0 ? uint64_t{1} << (b & 63) : characters_behind(child, missing);
  }
  return found;
}

ModelToken WordPiece::longest_token(std::string_view word, size_t begin) const {
  const Found found = longest(continuation_, word, begin);
  return {ids_[found.node], static_cast<uint32_t>(begin), static_cast<uint32_t>(found.end)};
}

// The longest token that is what leads to `node` and then the begin of word[begin, ...); no node when there is none.
WordPiece::Found WordPiece::longest(uint32_t node, std::string_view word, size_t begin) const {
  Found found;
  if (node == ByteTrie::kNone) return found;
  for (size_t at = begin; at < word.size() && nodes_[node].base != 0;) {
    node = next(node, static_cast<uint8_t>(word[at++]));
    if (node == ByteTrie::kNone) break;
    const bool ends = nodes_[node].parent_and_key & 1;
    found.node = ends ? node : found.node;
    found.end = ends ? at : found.end;
  }
  return found;
}

Result<std::unique_ptr<const Model>> make_word_piece(const WordPieceSpec& spec) {
  auto vocabulary = with_context(Vocabulary::build(spec.vocab), "model.vocab");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  return std::make_unique<WordPiece>(std::move(*vocabulary), spec);
}

Result<std::unique_ptr<const Model>> make_word_level(const WordLevelSpec& spec) {
  auto vocabulary = with_context(Vocabulary::build(spec.vocab), "model.vocab");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  return std::make_unique<WordLevel>(std::move(*vocabulary), spec.unk_token);
}

Result<std::unique_ptr<const Model>> make_model(const ModelSpec& spec) {
  struct Maker {
    Result<std::unique_ptr<const Model>> operator()(const BpeSpec& s) { return CharBpe::build(s); }
    Result<std::unique_ptr<const Model>> operator()(const UnigramSpec& s) { return make_unigram(s); }
    Result<std::unique_ptr<const Model>> operator()(const WordPieceSpec& s) { return make_word_piece(s); }
    Result<std::unique_ptr<const Model>> operator()(const WordLevelSpec& s) { return make_word_level(s); }
  };
  return std::visit(Maker{}, spec);
}

}  // namespace millrace::tokenizer
