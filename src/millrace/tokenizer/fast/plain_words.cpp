// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/plain_words.h"

#include <algorithm>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/fast/unit_path.h"
#include "millrace/tokenizer/text/normal_forms.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

// What one character becomes.
std::string_view normalized(std::string_view character, const Normalizer& normalizer, PlainWords::Scratch& scratch) {
  scratch.character.assign(character, 0, false);
  if (!normalizer.apply(scratch.character, scratch.normalizer)) return {};
  return scratch.character.text();
}

bool is_removed_white(const PreTokenizerSpec& step) {
  const auto* split = std::get_if<CharacterSplitSpec>(&step);
  return split != nullptr && split->kind == CharacterKind::kWhiteSpace && split->behavior == SplitBehavior::kRemoved;
}

bool is_isolated_punctuation(const PreTokenizerSpec& step) {
  const auto* split = std::get_if<CharacterSplitSpec>(&step);
  return split != nullptr && split->kind == CharacterKind::kPunctuation && split->behavior == SplitBehavior::kIsolated;
}

// A letter that is one character of the final text.
bool is_final_letter(uint32_t c) {
  return c < 0x80 ? (c | 0x20) >= 'a' && (c | 0x20) <= 'z' : c <= 0xFFFF && is_lone_letter(c);
}

// A letter of the scripts with capitals and accents that decomposes into letters and accents, a letter first: neither
// they nor what single characters of them become joins, orders or is in one cluster with a letter before or behind.
bool has_accents(uint32_t c) {
  const bool is_among = (c >= 0xC0 && c < 0x590) || (c >= 0x10A0 && c < 0x1100) || (c >= 0x1E00 && c < 0x2000);
  if (!is_among || !is_lone_letter(c)) return false;
  std::string text;
  append_utf8(c, text);
  std::vector<NormalizedChar> parts;
  normalize(NormalForm::kNfkd, text, parts);
  const auto is_accent = [](uint32_t part) { return part >= 0x300 && part < 0x370; };
  return !is_accent(parts[0].c) && std::ranges::all_of(parts, [&](const NormalizedChar& part) {
    return is_accent(part.c) || is_final_letter(part.c);
  });
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
  bool is_raw = true;  // nothing but replacing comes before the step
  for (const NormalizerSpec& step : spec.normalizers) {
    const auto* replace = std::get_if<ReplaceSpec>(&step);
    is_raw &= replace != nullptr;
    if (replace == nullptr || replace->pattern.is_regex) continue;  // that one is for spaces
    if (!is_raw) return std::nullopt;
    // Whether they are replaced depends on their neighbours.
    plain.replaced_.push_back(replace->pattern.text);
    for (const char c : replace->pattern.text) {
      plain.is_replaced_[static_cast<uint8_t>(c) & 0x7F] = true;
      plain.stays_[static_cast<uint8_t>(c) & 0x7F] = false;
    }
  }
  return plain;
}

PlainWords::Form PlainWords::find_form(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const {
  const Form not_plain{Form::kNotPlain};
  if (!takes_foreign_ || c == 0x2581 || is_white_space(c) || (isolates_punctuation_ && is_punctuation(c)))
    return not_plain;
  // Normal forms and precompiled maps look at neighbours, but letters are no neighbours of each other.
  if (only_letters_ && !is_lone_letter(c)) return not_plain;
  std::string text;
  append_utf8(c, text);
  const std::string_view becomes = normalized(text, normalizer, scratch);
  if (becomes == text) return {Form::kItself};
  Form form{Form::kOther, static_cast<uint8_t>(becomes.size())};
  if (!has_accents(c) || becomes.empty() || becomes.size() > form.bytes.size()) return not_plain;
  for (Characters part(becomes); !part.at_end(); part.next())
    if (!is_final_letter(part.value())) return not_plain;
  std::ranges::copy(becomes, form.bytes.begin());
  return form;
}

const PlainWords::Form& PlainWords::form(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const {
  static constexpr Form kBeyond{Form::kNotPlain};
  if (c < 0x80 || c > 0xFFFF) return kBeyond;
  if (scratch.known.empty()) scratch.known.resize(0x10000);
  Form& known = scratch.known[c];
  if (known.kind == Form::kNotAsked) known = find_form(c, normalizer, scratch);
  return known;
}

bool PlainWords::is_plain(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const {
  return form(c, normalizer, scratch).kind == Form::kItself;
}

bool PlainWords::has_replaced(std::string_view unit) const {
  return std::ranges::any_of(replaced_, [&](const std::string& text) { return unit.find(text) != unit.npos; });
}

bool PlainWords::cut(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const {
  // SAFETY: uint8_t may alias any object.
  const auto* p = reinterpret_cast<const uint8_t*>(unit.data());
  const uint8_t* const end = p + unit.size();
  std::string& text = scratch.text;
  text = prefix_;
  scratch.words.clear();
  if (begins_with_space_ && (*p >= 128 || !becomes_space_[*p++])) return false;
  // Where a precompiled map is not the first step, units keep the white space before them, of which CR may be one
  // cluster with what follows.
  while (!begins_with_space_ && p < end && *p < 0x80 && becomes_space_[*p] && *p != '\r') ++p;
  if (p == end && !begins_with_space_) return true;
  bool may_be_replaced = false;
  size_t begin = 0;
  const auto end_word = [&] {
    if (text.size() > begin) scratch.words.push_back({begin, text.size()});
    begin = text.size();
  };
  while (p < end) {
    if (*p < 0x80) {
      const uint8_t c = *p++;
      if (ascii_[c] == kNotPlain) return false;
      may_be_replaced |= is_replaced_[c];
      if (alone_[c]) end_word();
      text += static_cast<char>(ascii_[c]);
      if (alone_[c]) end_word();
      continue;
    }
    const CodePoint c = decode_code_point(p, end);
    const Form& becomes = form(c.value, normalizer, scratch);
    if (becomes.kind == Form::kNotPlain) return false;
    text.append(becomes.kind == Form::kOther ? becomes.text()
                                             : unit.substr(unit.size() - static_cast<size_t>(end - p), c.size));
    p += c.size;
  }
  if (may_be_replaced && has_replaced(unit)) return false;
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
