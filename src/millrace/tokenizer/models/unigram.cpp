// SPDX-License-Identifier: Apache-2.0
// Unigram: of all ways to write a word as tokens, the one with the highest sum of log probabilities (Viterbi). A
// character that is no token costs the lowest score of the vocabulary less ten; unknown characters side by side are
// one.
#include <algorithm>
#include <limits>

#include "millrace/tokenizer/models/byte_tokens.h"
#include "millrace/tokenizer/models/byte_trie.h"
#include "millrace/tokenizer/models/model.h"
#include "millrace/tokenizer/text/aligned_text.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10.0;

class Unigram final : public Model {
 public:
  Unigram(Vocabulary vocabulary, const VocabularySpec& tokens, const UnigramSpec& spec)
      : Model(std::move(vocabulary)), trie_(tokens, scores_of(spec)), unk_id_(spec.unk_id.value_or(kNoToken)) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& [token, score] : spec.vocab) lowest = std::min(lowest, score);
    unknown_score_ = lowest - kUnknownPenalty;
    if (spec.byte_fallback)
      byte_tokens_ = find_byte_tokens(this->vocabulary());
    else
      byte_tokens_.fill(kNoToken);
  }

  Status encode_word(std::string_view word, Scratch& scratch, std::vector<ModelToken>& tokens) const override {
    RETURN_IF_ERROR(find_paths(word, scratch.paths));
    const size_t first = tokens.size();
    for (auto end = static_cast<uint32_t>(word.size()); end > 0;) {
      ModelToken token{id_of(scratch.paths[end]), scratch.paths[end].begin, end};
      if (token.id == unk_id_)
        while (token.begin > 0 && id_of(scratch.paths[token.begin]) == unk_id_)
          token.begin = scratch.paths[token.begin].begin;
      end = token.begin;
      add_backwards(word, token, tokens);
    }
    std::reverse(tokens.begin() + static_cast<ptrdiff_t>(first), tokens.end());
    return {};
  }

  std::string_view text_of(const ModelToken& token, std::string_view word) const override {
    return token.id == unk_id_ ? word.substr(token.begin, token.end - token.begin) : vocabulary().token(token.id);
  }

 private:
  static std::vector<double> scores_of(const UnigramSpec& spec) {
    std::vector<double> scores;
    scores.reserve(spec.vocab.size());
    for (const auto& [token, score] : spec.vocab) scores.push_back(score);
    return scores;
  }

  static constexpr uint32_t kUnknown = ByteTrie::kNone - 1;  // the node of a character that is no token
  using Paths = std::vector<Scratch::BestPath>;

  Status find_paths(std::string_view word, Paths& paths) const {
    // SAFETY: uint8_t may alias any object.
    const auto* const text = reinterpret_cast<const uint8_t*>(word.data());
    const size_t size = word.size();
    paths.assign(size + 1, {});
    for (size_t begin = 0; begin < size;) {
      const size_t end = begin + decode_code_point(text + begin, text + size).size;
      const double score = paths[begin].score;
      bool is_token = false;
      uint32_t node = ByteTrie::kRoot;
      for (size_t at = begin; at < size;) {
        node = trie_.next(node, text[at++]);
        if (node == ByteTrie::kNone) break;
        if (!trie_.ends_key(node)) continue;
        improve(paths[at], {score + trie_.weight(node), static_cast<uint32_t>(begin), node});
        is_token |= at == end;
      }
      if (!is_token && improve(paths[end], {score + unknown_score_, static_cast<uint32_t>(begin), kUnknown}) &&
          unk_id_ == kNoToken)
        return fail(ErrorCode::kInvalidArgument, "\"{}\" is unknown, and the file has no unk_id",
                    word.substr(begin, end - begin));
      begin = end;
    }
    return {};
  }

  // True when `candidate` is the better way.
  static bool improve(Scratch::BestPath& best, const Scratch::BestPath& candidate) {
    const bool reached = best.node != ByteTrie::kNone;
    if (reached && !(candidate.score > best.score)) return false;
    best = candidate;
    return true;
  }

  uint32_t id_of(const Scratch::BestPath& path) const {
    return path.node == kUnknown ? unk_id_ : trie_.value(path.node);
  }

  // Unknown text may still be a token as a whole, or be spelled in bytes.
  void add_backwards(std::string_view word, ModelToken token, std::vector<ModelToken>& tokens) const {
    if (token.id != unk_id_) return tokens.push_back(token);
    const std::string_view text = word.substr(token.begin, token.end - token.begin);
    if (const uint32_t id = vocabulary().find(text); id != kNoToken) {
      token.id = id;
      return tokens.push_back(token);
    }
    const bool spelled =
        std::ranges::all_of(text, [&](char b) { return byte_tokens_[static_cast<uint8_t>(b)] != kNoToken; });
    if (!spelled) return tokens.push_back(token);
    for (size_t i = text.size(); i-- > 0;)
      tokens.push_back({byte_tokens_[static_cast<uint8_t>(text[i])], token.begin, token.end});
  }

  ByteTrie trie_;
  double unknown_score_ = 0;
  uint32_t unk_id_;
  std::array<uint32_t, 256> byte_tokens_{};
};

}  // namespace

Result<std::unique_ptr<const Model>> make_unigram(const UnigramSpec& spec) {
  VocabularySpec tokens;
  tokens.reserve(spec.vocab.size());
  for (const auto& [token, score] : spec.vocab) tokens.emplace_back(token, static_cast<uint32_t>(tokens.size()));
  auto vocabulary = with_context(Vocabulary::build(tokens, Vocabulary::Repeats::kLastIsFound), "model.vocab");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  return std::make_unique<Unigram>(std::move(*vocabulary), tokens, spec);
}

}  // namespace millrace::tokenizer
