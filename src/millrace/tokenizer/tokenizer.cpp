// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/tokenizer.h"

#include <algorithm>

#include "millrace/base/utf8.h"
#include "millrace/tokenizer/byte_map.h"
#include "millrace/tokenizer/pipeline.h"

namespace millrace::tokenizer {

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer::Impl>> Tokenizer::Impl::build(std::string_view json) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, parse_tokenizer_json(json));
  ASSIGN_OR_RETURN(const Pretokenizer pretokenizer, Pretokenizer::find(spec.pretokenizer.pattern));
  ASSIGN_OR_RETURN(Bpe model, Bpe::build(spec.model));
  AddedTokens added_tokens(spec.added_tokens, model.vocabulary());
  return std::make_unique<Impl>(Impl{std::move(model), std::move(added_tokens), pretokenizer,
                                     spec.pretokenizer.add_prefix_space, std::move(spec.post_processor),
                                     xxh3_128(json)});
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view json, std::string name) {
  auto impl = with_context(Impl::build(json), name);
  if (!impl) return tl::unexpected(std::move(impl).error());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(*impl)));
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special_tokens) const {
  const Vocabulary& vocabulary = impl_->model.vocabulary();
  std::string bytes;
  for (const uint32_t id : ids) {
    if (const auto* added = impl_->added_tokens.find(id)) {
      if (added->special && skip_special_tokens) continue;
      // The decoder takes an added token for a spelling too, when its characters allow that.
      if (!append_bytes_of(added->content, bytes)) bytes += added->content;
    } else if (vocabulary.contains(id)) {
      bytes += vocabulary.bytes(id);
    }
  }
  if (is_utf8(bytes)) return bytes;
  std::string text;
  append_utf8_replaced(bytes, text);
  return text;
}

std::optional<uint32_t> Tokenizer::token_to_id(std::string_view token) const {
  uint32_t id = impl_->added_tokens.find(token);
  if (id == kNoToken) id = impl_->model.vocabulary().find(token);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(uint32_t id) const {
  if (const auto* added = impl_->added_tokens.find(id)) return added->content;
  if (impl_->model.vocabulary().contains(id)) return impl_->model.vocabulary().spelled(id);
  return std::nullopt;
}

int64_t Tokenizer::vocab_size() const {
  return impl_->model.vocabulary().size() + impl_->added_tokens.beyond_vocabulary();
}

int64_t Tokenizer::id_limit() const {
  return std::max(impl_->model.vocabulary().id_limit(), impl_->added_tokens.id_limit());
}

Hash128 Tokenizer::hash() const {
  return impl_->hash;
}

}  // namespace millrace::tokenizer
