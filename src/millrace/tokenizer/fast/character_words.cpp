// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/character_words.h"

#include <algorithm>
#include <string>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

constexpr uint32_t kCharacters = 0x10000;
constexpr size_t kLongestUnit = 2 * DirectWords::kMostIds;  // of characters of two bytes

// Whether it has two or three bytes, as U+0080 to U+FFFF have.
bool is_in_table(const CodePoint& c) {
  return c.size == 2 || c.size == 3;
}

}  // namespace

CharacterWords::CharacterWords(const WordPiece& model, const PlainWords& plain, const Normalizer& normalizer)
    : model_(model),
      plain_(plain),
      normalizer_(normalizer),
      characters_(make_huge_array<Character>(kCharacters, Pages::kSmall)) {}

// Each character gets its own id. Where it and the next one may begin a longer token, the model is asked.
size_t CharacterWords::encode(std::string_view unit, uint32_t* ids) {
  if (unit.size() > kLongestUnit || !model_.takes(unit)) return 0;
  // SAFETY: uint8_t may alias any object.
  const auto* const text = reinterpret_cast<const uint8_t*>(unit.data());
  const uint8_t* const end = text + unit.size();
  const uint8_t* before = text;
  uint32_t* to = ids;
  uint32_t lowest = UINT32_MAX;
  uint64_t longer = 0;
  for (const uint8_t* p = text; p < end;) {
    const CodePoint c = decode_code_point(p, end);
    if (!is_in_table(c)) return 0;
    if (longer >> (c.value & 63) & 1) {
      const ModelToken token = model_.longest_token(unit, static_cast<size_t>(before - text));
      longer = 0;
      if (const uint8_t* const token_end = text + token.end; token_end > p) {
        if (!are_plain(unit.substr(static_cast<size_t>(p - text), static_cast<size_t>(token_end - p)))) return 0;
        to[-1] = token.id;
        p = token_end;
        continue;
      }
    }
    const Character& found = character(c.value);
    const uint32_t piece = p == text ? found.first : found.next;
    if (piece == kOther) return 0;
    *to++ = piece - kFirstId;
    lowest = std::min(lowest, piece);
    longer = p == text ? 0 : found.longer;
    before = p;
    p += c.size;
  }
  if (lowest >= kFirstId) return static_cast<size_t>(to - ids);
  *ids = model_.unk_id();
  return 1;
}

bool CharacterWords::are_plain(std::string_view text) {
  // SAFETY: uint8_t may alias any object.
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const CodePoint c = decode_code_point(p, end);
    if (!is_in_table(c) || character(c.value).next == kOther) return false;
    p += c.size;
  }
  return true;
}

const CharacterWords::Character& CharacterWords::ask(uint32_t c) {
  Character& result = characters_[c];
  result = {kOther, kOther, 0};
  const bool is_surrogate = c >= 0xD800 && c < 0xE000;
  if (is_surrogate || !plain_.is_plain(c, normalizer_, scratch_)) return result;
  std::string text;
  append_utf8(c, text);
  const auto first = model_.beginning_with(text, true), next = model_.beginning_with(text, false);
  if (first.longer == 0) result.first = first.id == kNoToken ? kUnknown : first.id + kFirstId;
  if (next.id != kNoToken || next.longer == 0) result.next = next.id == kNoToken ? kUnknown : next.id + kFirstId;
  result.longer = next.longer;
  return result;
}

}  // namespace millrace::tokenizer
