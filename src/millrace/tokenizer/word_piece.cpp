// SPDX-License-Identifier: Apache-2.0
// WordPiece: the longest token that the word begins with, again and again. WordLevel: the word is a token or unknown.
#include "millrace/tokenizer/aligned_text.h"
#include "millrace/tokenizer/char_bpe.h"

namespace millrace::tokenizer {
namespace {

class WordLevel : public Model {
 public:
  WordLevel(Vocabulary vocabulary, std::string unk_token)
      : Model(std::move(vocabulary)), unk_token_(std::move(unk_token)), unk_id_(this->vocabulary().find(unk_token_)) {}

  Status encode_word(std::string_view word, Scratch&, std::vector<ModelToken>& tokens) const override {
    const uint32_t id = vocabulary().find(word);
    if (id == kNoToken) return add_unknown(word, tokens);
    tokens.push_back({id, 0, static_cast<uint32_t>(word.size())});
    return {};
  }

 protected:
  Status add_unknown(std::string_view word, std::vector<ModelToken>& tokens) const {
    if (unk_id_ == kNoToken)
      return fail(ErrorCode::kInvalidArgument, "\"{}\" is unknown, and so is the unk_token \"{}\"", word.substr(0, 100),
                  unk_token_);
    tokens.push_back({unk_id_, 0, static_cast<uint32_t>(word.size())});
    return {};
  }

 private:
  std::string unk_token_;
  uint32_t unk_id_;
};

class WordPiece final : public WordLevel {
 public:
  WordPiece(Vocabulary vocabulary, const WordPieceSpec& spec)
      : WordLevel(std::move(vocabulary), spec.unk_token),
        prefix_(spec.continuing_subword_prefix),
        max_characters_(spec.max_input_chars_per_word) {
    for (int64_t id = 0; id < this->vocabulary().id_limit(); ++id)
      if (this->vocabulary().contains(static_cast<uint32_t>(id)))
        longest_token_ = std::max(longest_token_, this->vocabulary().token(static_cast<uint32_t>(id)).size());
  }

  Status encode_word(std::string_view word, Scratch& scratch, std::vector<ModelToken>& tokens) const override {
    uint64_t characters = 0;
    for (const char b : word) characters += (static_cast<uint8_t>(b) & 0xC0) != 0x80;
    if (characters > max_characters_) return add_unknown(word, tokens);
    const size_t first = tokens.size();
    for (size_t begin = 0; begin < word.size();) {
      const ModelToken token = longest(word, begin, scratch.affixed);
      if (token.id == kNoToken) {
        tokens.resize(first);
        return add_unknown(word, tokens);
      }
      tokens.push_back(token);
      begin = token.end;
    }
    return {};
  }

 private:
  // The longest token that word[begin, ...) begins with; no id when there is none.
  ModelToken longest(std::string_view word, size_t begin, std::string& candidate) const {
    const size_t prefix_size = begin > 0 ? prefix_.size() : 0;
    candidate.assign(begin > 0 ? prefix_ : "").append(word.substr(begin, longest_token_));
    for (size_t size = candidate.size(); size > prefix_size; --size) {
      const bool whole = begin + size - prefix_size == word.size() ||
                         (static_cast<uint8_t>(word[begin + size - prefix_size]) & 0xC0) != 0x80;
      if (!whole) continue;
      const uint32_t id = vocabulary().find(std::string_view(candidate).substr(0, size));
      if (id != kNoToken) return {id, static_cast<uint32_t>(begin), static_cast<uint32_t>(begin + size - prefix_size)};
    }
    return {};
  }

  std::string prefix_;
  uint64_t max_characters_;
  size_t longest_token_ = 0;  // bytes
};

}  // namespace

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
