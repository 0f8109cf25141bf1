// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>

#include "millrace/base/hash.h"

namespace millrace::tokenizer {
namespace {

// Real files number their tokens without large holes; the table by id is as long as the largest id.
constexpr uint64_t max_id(size_t tokens) {
  return (uint64_t{1} << 20) + 16 * tokens;
}

}  // namespace

Result<Vocabulary> Vocabulary::build(std::span<const std::pair<std::string_view, uint32_t>> tokens, Repeats repeats) {
  Vocabulary vocabulary;
  uint64_t limit = 0;
  size_t bytes = 0;
  for (const auto& [token, id] : tokens) {
    limit = std::max(limit, uint64_t{id} + 1);
    bytes += token.size();
  }
  if (limit > max_id(tokens.size()))
    return fail(ErrorCode::kUnsupported, "the id {} in a vocabulary of {} tokens", limit - 1, tokens.size());
  if (bytes >= kAbsent) return fail(ErrorCode::kUnsupported, "a vocabulary of {} bytes", bytes);
  vocabulary.tokens_.resize(limit);
  vocabulary.slots_.resize(std::bit_ceil(tokens.size() * 2 + 2));
  vocabulary.arena_.reserve(bytes);
  for (const auto& [token, id] : tokens) RETURN_IF_ERROR(vocabulary.insert(token, id, repeats));
  return vocabulary;
}

Status Vocabulary::insert(std::string_view token, uint32_t id, Repeats repeats) {
  if (contains(id)) return fail(ErrorCode::kUnsupported, "the id {} for two tokens, one is \"{}\"", id, token);
  const uint64_t hash = xxh3_64(token);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t i = hash & (slots_.size() - 1);
  for (; slots_[i].id != kNoToken; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].tag != tag || this->token(slots_[i].id) != token) continue;
    if (repeats == Repeats::kRefused) return fail(ErrorCode::kUnsupported, "the token \"{}\" twice", token);
    break;
  }
  slots_[i] = {tag, id};
  tokens_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(token.size())};
  arena_.append(token);
  ++size_;
  return {};
}

uint32_t Vocabulary::find(std::string_view token) const {
  return find(token, xxh3_64(token));
}

uint32_t Vocabulary::find(std::string_view token, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & (slots_.size() - 1); slots_[i].id != kNoToken; i = (i + 1) & (slots_.size() - 1))
    if (slots_[i].tag == tag && this->token(slots_[i].id) == token) return slots_[i].id;
  return kNoToken;
}

void Vocabulary::find_many(std::span<const std::string_view> tokens, std::span<uint32_t> ids) const {
  std::array<uint64_t, kMany> hashes;
  for (size_t i = 0; i < tokens.size(); ++i) {
    hashes[i] = xxh3_64(tokens[i]);
    __builtin_prefetch(&slots_[hashes[i] & (slots_.size() - 1)]);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t likely = slots_[hashes[i] & (slots_.size() - 1)].id;
    if (likely != kNoToken) __builtin_prefetch(&tokens_[likely]);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t likely = slots_[hashes[i] & (slots_.size() - 1)].id;
    if (likely != kNoToken) __builtin_prefetch(arena_.data() + tokens_[likely].offset);
  }
  for (size_t i = 0; i < tokens.size(); ++i) ids[i] = find(tokens[i], hashes[i]);
}

}  // namespace millrace::tokenizer
