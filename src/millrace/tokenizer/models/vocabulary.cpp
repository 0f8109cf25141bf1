// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/models/vocabulary.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "millrace/base/hash/hash.h"
#include "millrace/tokenizer/file/load_threads.h"

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
  vocabulary.slots_ = ProbeTable<Slot>(tokens.size());
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
      slots_.prefetch_to_write(keys[i].hash());
    }
    for (size_t i = 0; i < some.size(); ++i) {
      Slot& slot = slots_.find(keys[i].hash(), [&](const Slot& other) { return other.key == keys[i].bits; });
      if (!slot.is_empty())
        again.push_back(first + i);
      else
        slot = {keys[i].bits, some[i].second};
    }
  }
  return again;
}

Status Vocabulary::insert_again(std::string_view token, uint32_t id, Repeats repeats) {
  const Key key(token);
  Slot& slot = slots_.find(key.hash(), [&](const Slot& other) { return is_of(other, key, token); });
  if (!slot.is_empty() && repeats == Repeats::kRefused)
    return fail(ErrorCode::kUnsupported, "the token \"{}\" twice", token);
  slot = {key.bits, id};
  return {};
}

uint32_t Vocabulary::find(std::string_view token) const {
  return find(token, Key(token));
}

uint32_t Vocabulary::find(std::string_view token, Key key) const {
  const Slot& slot = slots_.find(key.hash(), [&](const Slot& other) { return is_of(other, key, token); });
  return slot.is_empty() ? kNoToken : slot.id;
}

void Vocabulary::find_many(std::span<const std::string_view> tokens, std::span<uint32_t> ids) const {
  Keys keys;
  const size_t count = tokens.size();
  for (size_t i = 0; i < count; ++i) {
    keys[i] = Key(tokens[i]);
    slots_.prefetch(keys[i].hash());
  }
  for (size_t i = 0; i < count; ++i) ids[i] = find(tokens[i], keys[i]);
}

}  // namespace millrace::tokenizer
