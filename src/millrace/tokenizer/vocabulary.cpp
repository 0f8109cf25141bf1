// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>

#include "millrace/base/hash.h"
#include "millrace/tokenizer/byte_map.h"

namespace millrace::tokenizer {
namespace {

// Real files number their tokens without large holes; the table by id is as long as the largest id.
constexpr uint64_t max_id(size_t tokens) {
  return (uint64_t{1} << 20) + 16 * tokens;
}

}  // namespace

Result<Vocabulary> Vocabulary::build(std::span<const std::pair<std::string_view, uint32_t>> tokens) {
  Vocabulary vocabulary;
  uint64_t limit = 0;
  size_t spelled_bytes = 0;
  for (const auto& [spelled, id] : tokens) {
    limit = std::max(limit, uint64_t{id} + 1);
    spelled_bytes += spelled.size();
  }
  if (limit > max_id(tokens.size()))
    return fail(ErrorCode::kUnsupported, "the id {} in a vocabulary of {} tokens", limit - 1, tokens.size());
  if (spelled_bytes >= kAbsent) return fail(ErrorCode::kUnsupported, "a vocabulary of {} bytes", spelled_bytes);
  vocabulary.tokens_.resize(limit);
  vocabulary.slots_.resize(std::bit_ceil(tokens.size() * 2 + 2));
  vocabulary.arena_.reserve(spelled_bytes);
  for (const auto& [spelled, id] : tokens) RETURN_IF_ERROR(vocabulary.insert(spelled, id));
  return vocabulary;
}

Status Vocabulary::insert(std::string_view spelled, uint32_t id) {
  if (contains(id)) return fail(ErrorCode::kUnsupported, "the id {} for two tokens, one is \"{}\"", id, spelled);
  const size_t offset = arena_.size();
  const bool spellable = append_bytes_of(spelled, arena_);
  if (spellable) {
    const auto bytes = std::string_view(arena_).substr(offset);
    const uint64_t hash = xxh3_64(bytes);
    const auto tag = static_cast<uint32_t>(hash >> 32);
    size_t i = hash & (slots_.size() - 1);
    for (; slots_[i].id != kNoToken; i = (i + 1) & (slots_.size() - 1))
      if (slots_[i].tag == tag && this->bytes(slots_[i].id) == bytes)
        return fail(ErrorCode::kUnsupported, "the token \"{}\" twice", spelled);
    slots_[i] = {tag, id};
  } else {
    if (!unspellable_.emplace(spelled, id).second)
      return fail(ErrorCode::kUnsupported, "the token \"{}\" twice", spelled);
    arena_.append(spelled);
  }
  tokens_[id] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(arena_.size() - offset) & kAbsent, spellable};
  ++size_;
  return {};
}

uint32_t Vocabulary::find_bytes(std::string_view bytes) const {
  const uint64_t hash = xxh3_64(bytes);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & (slots_.size() - 1); slots_[i].id != kNoToken; i = (i + 1) & (slots_.size() - 1))
    if (slots_[i].tag == tag && this->bytes(slots_[i].id) == bytes) return slots_[i].id;
  return kNoToken;
}

uint32_t Vocabulary::find(std::string_view spelled) const {
  std::string bytes;
  if (append_bytes_of(spelled, bytes)) return find_bytes(bytes);
  const auto found = unspellable_.find(spelled);
  return found == unspellable_.end() ? kNoToken : found->second;
}

std::string Vocabulary::spelled(uint32_t id) const {
  if (!tokens_[id].spellable) return std::string(bytes(id));
  std::string result;
  append_spelling_of(bytes(id), result);
  return result;
}

}  // namespace millrace::tokenizer
