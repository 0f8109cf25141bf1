// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/plain_words.h"

#include "millrace/base/utf8.h"
#include "millrace/tokenizer/unicode_tables.h"
#include "millrace/tokenizer/unit_path.h"

namespace millrace::tokenizer {
namespace {

// What one character becomes.
std::string_view normalized(std::string_view character, const Normalizer& normalizer, PlainWords::Scratch& scratch) {
  scratch.character.assign(character, 0, false);
  if (!normalizer.apply(scratch.character, scratch.normalizer)) return {};
  return scratch.character.text();
}

bool is_removed_white(const PretokenizerSpec& step) {
  const auto* split = std::get_if<CharacterSplitSpec>(&step);
  return split != nullptr && split->kind == CharacterKind::kWhiteSpace && split->behavior == SplitBehavior::kRemoved;
}

bool is_isolated_punctuation(const PretokenizerSpec& step) {
  const auto* split = std::get_if<CharacterSplitSpec>(&step);
  return split != nullptr && split->kind == CharacterKind::kPunctuation && split->behavior == SplitBehavior::kIsolated;
}

}  // namespace

std::optional<PlainWords> PlainWords::build(const TokenizerSpec& spec, const Normalizer& normalizer) {
  PlainWords plain;
  const auto& steps = spec.pretokenizers;
  if (steps.empty() || steps.size() > 2) return std::nullopt;
  const auto* metaspace = std::get_if<MetaspaceSpec>(&steps.back());
  plain.begins_with_space_ = steps.size() == 1 && metaspace != nullptr;
  if (!plain.begins_with_space_ && !is_removed_white(steps[0])) return std::nullopt;
  if (metaspace != nullptr) {
    // Another replacement could be a character of a word.
    if (metaspace->replacement != kMetaSymbol) return std::nullopt;
    if (plain.begins_with_space_ || metaspace->prepend != PrependScheme::kNever) plain.prefix_ = kMetaSymbol;
  } else if (steps.size() == 2) {
    if (!is_isolated_punctuation(steps[1])) return std::nullopt;
    plain.isolates_punctuation_ = true;
  }
  for (const NormalizerSpec& step : spec.normalizers) {
    const auto* form = std::get_if<NormalForm>(&step);
    const auto* bert = std::get_if<BertNormalizerSpec>(&step);
    if (form != nullptr && (*form == NormalForm::kNfc || *form == NormalForm::kNfkc)) plain.takes_foreign_ = false;
    if (form != nullptr || (bert != nullptr && bert->strip_accents) || std::holds_alternative<PrecompiledSpec>(step))
      plain.only_letters_ = true;
  }
  Scratch scratch;
  for (uint8_t c = 1; c < 128; ++c) {
    const char character = static_cast<char>(c);
    const std::string_view becomes = normalized({&character, 1}, normalizer, scratch);
    if (becomes.size() != 1) continue;
    const auto byte = static_cast<uint8_t>(becomes[0]);
    plain.becomes_space_[c] = byte == ' ';
    if (c <= ' ' || c == 0x7F || byte <= ' ' || byte >= 0x7F) continue;
    plain.ascii_[c] = byte;
    plain.stays_[c] = byte == c;
    plain.alone_[c] = plain.isolates_punctuation_ && is_punctuation(byte);
  }
  return plain;
}

bool PlainWords::find_plain(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const {
  if (!takes_foreign_ || c == 0x2581 || is_white_space(c) || (isolates_punctuation_ && is_punctuation(c))) return false;
  // Normal forms and charsmaps look at neighbours, but letters are no neighbours of each other.
  if (only_letters_ && !is_lone_letter(c)) return false;
  std::string text;
  append_utf8(c, text);
  return normalized(text, normalizer, scratch) == text;
}

bool PlainWords::is_plain(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const {
  if (c < 0x80 || c > 0xFFFF) return false;
  if (scratch.known.empty()) scratch.known.resize(0x10000);
  uint8_t& known = scratch.known[c];
  if (known == 0) known = find_plain(c, normalizer, scratch) ? 2 : 1;
  return known == 2;
}

bool PlainWords::cut(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const {
  // SAFETY: uint8_t may alias any object.
  const auto* p = reinterpret_cast<const uint8_t*>(unit.data());
  const uint8_t* const end = p + unit.size();
  std::string& text = scratch.text;
  text = prefix_;
  scratch.words.clear();
  if (begins_with_space_ && (*p >= 128 || !becomes_space_[*p++])) return false;
  size_t begin = 0;
  const auto end_word = [&] {
    if (text.size() > begin) scratch.words.push_back({begin, text.size()});
    begin = text.size();
  };
  while (p < end) {
    if (*p < 0x80) {
      const uint8_t c = *p++;
      if (ascii_[c] == kNotPlain) return false;
      if (alone_[c]) end_word();
      text += static_cast<char>(ascii_[c]);
      if (alone_[c]) end_word();
      continue;
    }
    const CodePoint c = decode_code_point(p, end);
    if (!is_plain(c.value, normalizer, scratch)) return false;
    text.append(unit.substr(unit.size() - static_cast<size_t>(end - p), c.size));
    p += c.size;
  }
  end_word();
  return true;
}

bool PlainWords::is_word(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const {
  if (begins_with_space_ || !prefix_.empty()) return false;
  // SAFETY: uint8_t may alias any object.
  const auto* p = reinterpret_cast<const uint8_t*>(unit.data());
  const uint8_t* const end = p + unit.size();
  if (unit.size() == 1) return *p < 0x80 && stays_[*p];
  while (p < end) {
    if (*p < 0x80) {
      const uint8_t c = *p++;
      if (!stays_[c] || alone_[c]) return false;
      continue;
    }
    const CodePoint c = decode_code_point(p, end);
    if (!is_plain(c.value, normalizer, scratch)) return false;
    p += c.size;
  }
  return true;
}

}  // namespace millrace::tokenizer
