// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "millrace/base/hash.h"
#include "millrace/tokenizer/load_threads.h"

namespace millrace::tokenizer {
namespace {

// Real files number their tokens without large holes; the table by id is as long as the largest id.
constexpr uint64_t max_id(size_t tokens) {
  return (uint64_t{1} << 20) + 16 * tokens;
}

}  // namespace

Result<Vocabulary> Vocabulary::build(Tokens tokens, Repeats repeats) {
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
  const size_t slots = std::bit_ceil(tokens.size() * 2 + 2);
  vocabulary.slots_ = make_huge_array<Slot>(slots);
  vocabulary.mask_ = slots - 1;
  vocabulary.shift_ = 64 - std::countr_zero(slots);
  vocabulary.arena_.reserve(bytes);
  Status spelled;
  std::vector<size_t> again;
  both(tokens.size(), [&] { spelled = vocabulary.spell(tokens); }, [&] { again = vocabulary.fill_slots(tokens); });
  RETURN_IF_ERROR(std::move(spelled));
  for (const size_t i : again) RETURN_IF_ERROR(vocabulary.insert_again(tokens[i].first, tokens[i].second, repeats));
  return vocabulary;
}

Vocabulary::Key::Key(std::string_view token) {
  const size_t size = token.size();
  if (size > kShort) {
    bits = xxh3_64(token) | uint64_t{0xFF} << 56;
    return;
  }
  uint64_t bytes = 0;
  if (size >= 4) {  // the first four and the last four
    uint32_t first, last;
    std::memcpy(&first, token.data(), 4);
    std::memcpy(&last, token.data() + size - 4, 4);
    bytes = first | uint64_t{last} << 8 * (size - 4);
  } else if (size > 0) {
    const auto byte = [&](size_t i) { return uint64_t{static_cast<uint8_t>(token[i])} << 8 * i; };
    bytes = byte(0) | byte(size / 2) | byte(size - 1);
  }
  bits = bytes | (size + 1) << 56;
}

Status Vocabulary::spell(Tokens tokens) {
  for (const auto& [token, id] : tokens) {
    if (contains(id)) return fail(ErrorCode::kUnsupported, "the id {} for two tokens, one is \"{}\"", id, token);
    tokens_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(token.size())};
    arena_.append(token);
    ++size_;
  }
  return {};
}

std::vector<size_t> Vocabulary::fill_slots(Tokens tokens) {
  std::vector<size_t> again;
  Keys keys;
  for (size_t first = 0; first < tokens.size(); first += kMany) {
    const auto some = tokens.subspan(first, std::min(kMany, tokens.size() - first));
    for (size_t i = 0; i < some.size(); ++i) {
      keys[i] = Key(some[i].first);
      __builtin_prefetch(&slots_[first_slot(keys[i])], 1);
    }
    for (size_t i = 0; i < some.size(); ++i) {
      size_t at = first_slot(keys[i]);
      while (slots_[at].key != 0 && slots_[at].key != keys[i].bits) at = (at + 1) & mask_;
      if (slots_[at].key != 0)
        again.push_back(first + i);
      else
        slots_[at] = {keys[i].bits, some[i].second};
    }
  }
  return again;
}

Status Vocabulary::insert_again(std::string_view token, uint32_t id, Repeats repeats) {
  const Key key(token);
  size_t i = first_slot(key);
  for (; slots_[i].key != 0; i = (i + 1) & mask_) {
    if (slots_[i].key != key.bits || (!key.is_whole() && this->token(slots_[i].id) != token)) continue;
    if (repeats == Repeats::kRefused) return fail(ErrorCode::kUnsupported, "the token \"{}\" twice", token);
    break;
  }
  slots_[i] = {key.bits, id};
  return {};
}

uint32_t Vocabulary::find(std::string_view token) const {
  return find(token, Key(token));
}

uint32_t Vocabulary::find(std::string_view token, Key key) const {
  for (size_t i = first_slot(key); slots_[i].key != 0; i = (i + 1) & mask_)
    if (slots_[i].key == key.bits && (key.is_whole() || this->token(slots_[i].id) == token)) return slots_[i].id;
  return kNoToken;
}

void Vocabulary::find_many(std::span<const std::string_view> tokens, std::span<uint32_t> ids) const {
  Keys keys;
  const size_t count = tokens.size();
  for (size_t i = 0; i < count; ++i) {
    keys[i] = Key(tokens[i]);
    __builtin_prefetch(&slots_[first_slot(keys[i])]);
  }
  for (size_t i = 0; i < count; ++i) ids[i] = find(tokens[i], keys[i]);
}

}  // namespace millrace::tokenizer
