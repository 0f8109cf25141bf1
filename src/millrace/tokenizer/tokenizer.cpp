// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/memory/huge_array.h"
#include "millrace/tokenizer/file/load_threads.h"
#include "millrace/tokenizer/pipeline.h"

namespace millrace::tokenizer {
namespace {

Result<std::variant<WordScannerChain, PreTokenizer>> find_words(std::span<const PreTokenizerSpec> steps) {
  if (auto chain = WordScannerChain::build(steps)) return std::move(*chain);
  return PreTokenizer::build_of_bytes(steps);
}

// Errors: unsupported (what in the file has another shape).
Result<ByteLevelPath> find_byte_level_path(const TokenizerSpec& spec, const Model& model) {
  const auto* bpe = dynamic_cast<const CharBpe*>(&model);
  const auto& steps = spec.pretokenizers;
  if (bpe == nullptr) return fail(ErrorCode::kUnsupported, "the model is no BPE");
  const auto is_byte_level = [](const PreTokenizerSpec& step) { return std::holds_alternative<ByteLevelSpec>(step); };
  const auto found = std::ranges::find_if(steps, is_byte_level);
  if (found == steps.end()) return fail(ErrorCode::kUnsupported, "no ByteLevel is among the pre-tokenizers");
  const auto* byte_level = std::get_if<ByteLevelSpec>(&*found);
  if (byte_level->add_prefix_space && steps.size() > 1)
    return fail(ErrorCode::kUnsupported, "ByteLevel puts a space before each word of another pre-tokenizer");
  ASSIGN_OR_RETURN(auto words, find_words(steps));
  auto byte_bpe = ByteBpe::build(*bpe);
  if (!byte_bpe) return fail(ErrorCode::kUnsupported, "the BPE has affixes, or no token for some byte");
  return ByteLevelPath{std::move(words), byte_level->add_prefix_space, std::move(*byte_bpe)};
}

// New memory takes longer to get than to fill, so large files are read in two parts.
Status read_all(const RandomReader& file, std::span<std::byte> out) {
  const size_t parts = std::min<size_t>(load_threads(likely_count(out.size())), 2);
  std::array<Status, 2> read;
  in_parts(parts, [&](size_t i) {
    const size_t begin = out.size() * i / parts, end = out.size() * (i + 1) / parts;
    read[i] = file.read_at(static_cast<int64_t>(begin), out.subspan(begin, end - begin));
  });
  RETURN_IF_ERROR(std::move(read[0]));
  return std::move(read[1]);
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer::Impl>> Tokenizer::Impl::build(std::string_view json) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, parse_tokenizer_json(json));
  ASSIGN_OR_RETURN(auto model, make_model(spec.model));
  ASSIGN_OR_RETURN(auto normalizer, Normalizer::build(spec.normalizers));
  ASSIGN_OR_RETURN(auto pre_tokenizer, PreTokenizer::build(spec.pretokenizers));
  ASSIGN_OR_RETURN(auto decoder, Decoder::build(spec.decoders));
  ASSIGN_OR_RETURN(auto added_tokens, AddedTokens::build(spec.added_tokens, model->vocabulary(), normalizer));
  auto byte_level = find_byte_level_path(spec, *model);
  auto units = byte_level ? std::nullopt : UnitPath::build(spec, *model);
  return std::make_unique<Impl>(Impl{std::move(added_tokens), std::move(normalizer), std::move(pre_tokenizer),
                                     std::move(model), std::move(spec.post_processor), std::move(decoder),
                                     byte_level ? std::optional(std::move(*byte_level)) : std::nullopt,
                                     std::move(units), byte_level ? "" : byte_level.error().message(), xxh3_128(json)});
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view json, std::string name) {
  auto impl = with_context(Impl::build(json), name);
  if (!impl) return tl::unexpected(std::move(impl).error());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(*impl)));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_file(const RandomReader& file, std::string name) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  RETURN_IF_ERROR(check_size(file, kMostBytes));
  const auto size = static_cast<size_t>(file.size());
  const HugeArray<char> text = make_huge_array<char>(size + 1);
  RETURN_IF_ERROR(read_all(file, std::as_writable_bytes(std::span(text.get(), size))));
  return from_json({text.get(), size}, std::move(name));
}

Result<std::string> Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special_tokens) const {
  const Vocabulary& vocabulary = impl_->model->vocabulary();
  std::vector<std::string> tokens;
  for (const uint32_t id : ids) {
    if (const auto* added = impl_->added_tokens.find(id)) {
      if (!added->special || !skip_special_tokens) tokens.push_back(added->content);
    } else if (vocabulary.contains(id)) {
      tokens.emplace_back(vocabulary.token(id));
    }
  }
  return impl_->decoder.decode(std::move(tokens));
}

std::optional<uint32_t> Tokenizer::token_to_id(std::string_view token) const {
  uint32_t id = impl_->added_tokens.find(token);
  if (id == kNoToken) id = impl_->model->vocabulary().find(token);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(uint32_t id) const {
  if (const auto* added = impl_->added_tokens.find(id)) return added->content;
  if (impl_->model->vocabulary().contains(id)) return std::string(impl_->model->vocabulary().token(id));
  return std::nullopt;
}

int64_t Tokenizer::vocab_size() const {
  return impl_->model->vocabulary().size() + impl_->added_tokens.beyond_vocabulary();
}

int64_t Tokenizer::id_limit() const {
  return std::max(impl_->model->vocabulary().id_limit(), impl_->added_tokens.id_limit());
}

std::span<const uint32_t> Tokenizer::ids_before() const {
  return impl_->post_processor.before;
}

std::span<const uint32_t> Tokenizer::ids_behind() const {
  return impl_->post_processor.after;
}

Hash128 Tokenizer::hash() const {
  return impl_->hash;
}

}  // namespace millrace::tokenizer
