// SPDX-License-Identifier: Apache-2.0
#pragma once

// Byte pair encoding whose first symbols are characters. Does everything that the BPE of a tokenizer.json can ask for:
// prefixes, suffixes, unknown tokens and byte fallback. Immutable, thread-safe.

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "millrace/tokenizer/models/model.h"

namespace millrace::tokenizer {

class CharBpe final : public Model {
 public:
  // Builds the model. Errors: invalid_argument (a merge of tokens that do not exist), unsupported (vocabulary.h).
  [[nodiscard]] static Result<std::unique_ptr<const CharBpe>> build(const BpeSpec& spec);

  [[nodiscard]] Status encode_word(std::string_view word, Scratch& scratch,
                                   std::vector<ModelToken>& tokens) const override;

  const MergeTable& merges() const { return merges_; }
  size_t merge_count() const { return merge_count_; }
  bool ignores_merges() const { return ignore_merges_; }
  // Returns whether a character without a token vanishes.
  bool drops_unknown() const { return !unk_token_ && !byte_fallback_; }
  // Returns the token for characters without a token that are not spelled by bytes; kNoToken: none.
  uint32_t unknown_id() const { return unk_id_; }
  bool fuses_unknown() const { return fuse_unk_; }
  bool byte_fallback() const { return byte_fallback_; }
  // Returns whether every character without a token can be spelled by byte tokens.
  bool spells_all_bytes() const {
    return byte_fallback_ && std::ranges::find(byte_tokens_, kNoToken) == byte_tokens_.end();
  }
  const std::array<uint32_t, 256>& byte_tokens() const { return byte_tokens_; }
  bool has_affixes() const { return !prefix_.empty() || !suffix_.empty(); }

 private:
  CharBpe(Vocabulary vocabulary, std::span<const Merge> merges, const BpeSpec& spec);
  [[nodiscard]] Status first_symbols(std::string_view word, Scratch& scratch) const;
  std::string_view with_affixes(std::string_view word, size_t begin, size_t end, std::string& storage) const;
  void write_unknown(uint32_t& bytes, MergeScratch& merge) const;
  bool add_bytes(std::string_view symbol, MergeScratch& merge) const;

  MergeTable merges_;
  size_t merge_count_;
  std::optional<std::string> unk_token_;
  uint32_t unk_id_ = kNoToken;
  std::string prefix_, suffix_;
  std::array<uint32_t, 256> byte_tokens_{};
  bool fuse_unk_, byte_fallback_, ignore_merges_;
};

}  // namespace millrace::tokenizer
