// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/models/char_bpe.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/tokenizer/file/load_threads.h"
#include "millrace/tokenizer/models/byte_tokens.h"
#include "millrace/tokenizer/text/aligned_text.h"

namespace millrace::tokenizer {
namespace {

void add_symbol(MergeScratch& merge, uint32_t id, uint32_t size) {
  merge.symbols.push_back(id);
  merge.sizes.push_back(size);
}

// Most files list their merges in the order of the tokens that they give: the `last` one again, or the next one.
uint32_t find_joined(const Vocabulary& vocabulary, std::string_view left, std::string_view right, uint32_t last) {
  for (const uint32_t id : {last, last + 1}) {
    if (!vocabulary.contains(id)) continue;
    const std::string_view token = vocabulary.token(id);
    if (token.size() == left.size() + right.size() && token.starts_with(left) && token.ends_with(right)) return id;
  }
  return vocabulary.find(std::string(left).append(right));
}

// The ids of the merges that begin with the one of rank `first`.
Status find_merges(const Vocabulary& vocabulary, const BpeSpec& spec, size_t first, std::span<Merge> merges) {
  constexpr size_t kChunk = 32;
  const size_t prefix = spec.continuing_subword_prefix.size();
  std::array<std::string_view, 2 * kChunk> names;  // left and right of each merge of a chunk
  std::array<uint32_t, 2 * kChunk> ids;
  static_assert(names.size() <= Vocabulary::kMany);
  uint32_t last = 0;
  for (size_t done = 0; done < merges.size(); done += kChunk) {
    const size_t count = std::min(kChunk, merges.size() - done);
    for (size_t i = 0; i < count; ++i) {
      const auto& [left, right] = spec.merges[first + done + i];
      if (right.size() < prefix)
        return fail(ErrorCode::kInvalidArgument, "model.merges[{}]: \"{}\" is shorter than the prefix",
                    first + done + i, right);
      names[2 * i] = left;
      names[2 * i + 1] = right;
    }
    vocabulary.find_many(std::span(names).first(2 * count), std::span(ids).first(2 * count));
    for (size_t i = 0; i < count; ++i) {
      last = find_joined(vocabulary, names[2 * i], names[2 * i + 1].substr(prefix), last);
      if (ids[2 * i] == kNoToken || ids[2 * i + 1] == kNoToken || last == kNoToken)
        return fail(ErrorCode::kInvalidArgument, "model.merges[{}]: \"{}\", \"{}\" or the two joined is no token",
                    first + done + i, names[2 * i], names[2 * i + 1]);
      merges[done + i] = {ids[2 * i], ids[2 * i + 1], last};
    }
  }
  return {};
}

Result<HugeVector<Merge>> find_all_merges(const Vocabulary& vocabulary, const BpeSpec& spec) {
  HugeVector<Merge> merges(spec.merges.size());
  const size_t parts = load_threads(merges.size());
  std::vector<Status> found(parts);
  in_parts(parts, [&](size_t i) {
    const size_t begin = merges.size() * i / parts, end = merges.size() * (i + 1) / parts;
    found[i] = find_merges(vocabulary, spec, begin, std::span(merges).subspan(begin, end - begin));
  });
  for (Status& status : found) RETURN_IF_ERROR(std::move(status));
  return merges;
}

}  // namespace

CharBpe::CharBpe(Vocabulary vocabulary, std::span<const Merge> merges, const BpeSpec& spec)
    : Model(std::move(vocabulary)),
      merges_(merges),
      merge_count_(merges.size()),
      unk_token_(spec.unk_token),
      prefix_(spec.continuing_subword_prefix),
      suffix_(spec.end_of_word_suffix),
      fuse_unk_(spec.fuse_unk),
      byte_fallback_(spec.byte_fallback),
      ignore_merges_(spec.ignore_merges) {
  if (unk_token_) unk_id_ = this->vocabulary().find(*unk_token_);
  if (byte_fallback_) byte_tokens_ = find_byte_tokens(this->vocabulary());
}

Result<std::unique_ptr<const CharBpe>> CharBpe::build(const BpeSpec& spec) {
  auto vocabulary = with_context(Vocabulary::build(spec.vocab), "model.vocab");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  if (spec.merges.size() >= UINT32_MAX)
    return fail(ErrorCode::kUnsupported, "model.merges: {} merges", spec.merges.size());
  ASSIGN_OR_RETURN(const auto merges, find_all_merges(*vocabulary, spec));
  return std::unique_ptr<const CharBpe>(new CharBpe(std::move(*vocabulary), merges, spec));
}

Status CharBpe::encode_word(std::string_view word, Scratch& scratch, std::vector<ModelToken>& tokens) const {
  if (ignore_merges_) {
    if (const uint32_t id = vocabulary().find(word); id != kNoToken) {
      tokens.push_back({id, 0, static_cast<uint32_t>(word.size())});
      return {};
    }
  }
  RETURN_IF_ERROR(first_symbols(word, scratch));
  merge_symbols(merges_, scratch.merge);
  // As in `tokenizers` tokens lie side by side from the start of the word on, also when characters vanished.
  uint32_t begin = 0;
  for (size_t i = 0; i < scratch.merge.symbols.size(); ++i) {
    const uint32_t end = begin + scratch.merge.sizes[i];
    tokens.push_back({scratch.merge.symbols[i], begin, end});
    begin = end;
  }
  return {};
}

Status CharBpe::first_symbols(std::string_view word, Scratch& scratch) const {
  scratch.merge.symbols.clear();
  scratch.merge.sizes.clear();
  uint32_t unknown_bytes = 0;  // of the unknown token that waits to be written
  for (Characters c(word); !c.at_end(); c.next()) {
    const auto size = static_cast<uint32_t>(c.end() - c.begin());
    const std::string_view symbol = with_affixes(word, c.begin(), c.end(), scratch.affixed);
    if (const uint32_t id = vocabulary().find(symbol); id != kNoToken) {
      write_unknown(unknown_bytes, scratch.merge);
      add_symbol(scratch.merge, id, size);
      continue;
    }
    // An unknown token that waits comes behind the byte tokens: so does `tokenizers` write it.
    if (byte_fallback_ && add_bytes(symbol, scratch.merge)) continue;
    if (!unk_token_) continue;  // the character vanishes
    if (unk_id_ == kNoToken)
      return fail(ErrorCode::kInvalidArgument, "\"{}\" is unknown, and so is the unk_token \"{}\"", symbol,
                  *unk_token_);
    if (!fuse_unk_) write_unknown(unknown_bytes, scratch.merge);
    unknown_bytes += size;
  }
  write_unknown(unknown_bytes, scratch.merge);
  return {};
}

std::string_view CharBpe::with_affixes(std::string_view word, size_t begin, size_t end, std::string& storage) const {
  const bool prefixed = begin > 0 && !prefix_.empty();
  const bool suffixed = end == word.size() && !suffix_.empty();
  const std::string_view symbol = word.substr(begin, end - begin);
  if (!prefixed && !suffixed) return symbol;
  storage.assign(prefixed ? prefix_ : "").append(symbol).append(suffixed ? suffix_ : "");
  return storage;
}

void CharBpe::write_unknown(uint32_t& bytes, MergeScratch& merge) const {
  if (bytes > 0) add_symbol(merge, unk_id_, bytes);
  bytes = 0;
}

bool CharBpe::add_bytes(std::string_view symbol, MergeScratch& merge) const {
  for (const char b : symbol)
    if (byte_tokens_[static_cast<uint8_t>(b)] == kNoToken) return false;
  for (const char b : symbol) add_symbol(merge, byte_tokens_[static_cast<uint8_t>(b)], 1);
  return true;
}

}  // namespace millrace::tokenizer
