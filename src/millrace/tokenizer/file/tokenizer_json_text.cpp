// SPDX-License-Identifier: Apache-2.0
// Normalizers and pre-tokenizers. A normalizer without a known "type" is told by its fields, in the order in which
// `tokenizers` tries; pre-tokenizers always name theirs.
#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/file/json_node.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/text/precompiled.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

std::string_view normalizer_by_shape(const JsonNode& node) {
  if (node.has("clean_text") && node.has("handle_chinese_chars") && node.has("lowercase")) return "Bert";
  if (node.has("strip_left") && node.has("strip_right")) return "Strip";
  if (node.has("normalizers")) return "Sequence";
  if (node.has("pattern") && node.has("content")) return "Replace";
  if (node.has("prepend")) return "Prepend";
  return {};
}

Result<NormalizerSpec> parse_bert_normalizer(const JsonNode& node) {
  BertNormalizerSpec spec;
  ASSIGN_OR_RETURN(spec.clean_text, node.bool_at("clean_text"));
  ASSIGN_OR_RETURN(spec.handle_chinese_chars, node.bool_at("handle_chinese_chars"));
  ASSIGN_OR_RETURN(spec.lowercase, node.bool_at("lowercase"));
  ASSIGN_OR_RETURN(spec.strip_accents, node.bool_or_null_at("strip_accents", spec.lowercase));
  return spec;
}

Result<NormalizerSpec> parse_strip(const JsonNode& node) {
  StripSpec spec;
  ASSIGN_OR_RETURN(spec.left, node.bool_at("strip_left"));
  ASSIGN_OR_RETURN(spec.right, node.bool_at("strip_right"));
  return spec;
}

Result<NormalizerSpec> parse_prepend(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto text, node.text_at("prepend"));
  return PrependSpec{std::string(text)};
}

Result<NormalizerSpec> parse_precompiled(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto field, node.at("precompiled_charsmap"));
  ASSIGN_OR_RETURN(const auto text, field.text());
  auto map = with_context(decode_base64(text), field.place);
  if (!map) return tl::unexpected(map.error());
  return PrecompiledSpec{std::move(*map)};
}

// `type` as normalizer_type found it.
Result<NormalizerSpec> parse_one_normalizer(const JsonNode& node, std::string_view type) {
  if (type == "NFC") return NormalForm::kNfc;
  if (type == "NFD") return NormalForm::kNfd;
  if (type == "NFKC") return NormalForm::kNfkc;
  if (type == "NFKD") return NormalForm::kNfkd;
  if (type == "Lowercase") return LowercaseSpec{};
  if (type == "StripAccents") return StripAccentsSpec{};
  if (type == "Nmt") return NmtSpec{};
  if (type == "ByteLevel") return ByteMapSpec{};
  if (type == "Bert") return parse_bert_normalizer(node);
  if (type == "Strip") return parse_strip(node);
  if (type == "Replace") return parse_replace(node);
  if (type == "Prepend") return parse_prepend(node);
  if (type == "Precompiled") return parse_precompiled(node);
  return node.unsupported(type.empty() ? "a normalizer of no known type" : type);
}

Result<std::string_view> normalizer_type(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto type, node.type());
  for (const std::string_view known : {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel",
                                       "Bert", "Strip", "Replace", "Prepend", "Precompiled", "Sequence"})
    if (type == known) return type;
  const std::string_view by_shape = normalizer_by_shape(node);
  return by_shape.empty() ? type : by_shape;
}

Result<SplitBehavior> parse_behavior(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto text, node.text());
  if (text == "Removed") return SplitBehavior::kRemoved;
  if (text == "Isolated") return SplitBehavior::kIsolated;
  if (text == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (text == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (text == "Contiguous") return SplitBehavior::kContiguous;
  return node.unsupported(text);
}

Result<PreTokenizerSpec> parse_split(const JsonNode& node) {
  SplitSpec spec;
  ASSIGN_OR_RETURN(spec.pattern, parse_pattern(node));
  ASSIGN_OR_RETURN(const auto behavior, node.at("behavior"));
  ASSIGN_OR_RETURN(spec.behavior, parse_behavior(behavior));
  ASSIGN_OR_RETURN(spec.invert, node.bool_at("invert"));
  return spec;
}

Result<PreTokenizerSpec> parse_byte_level(const JsonNode& node) {
  ByteLevelSpec spec;
  ASSIGN_OR_RETURN(spec.add_prefix_space, node.bool_at("add_prefix_space"));
  RETURN_IF_ERROR(node.bool_at("trim_offsets"));
  ASSIGN_OR_RETURN(spec.use_regex, node.bool_at("use_regex", true));
  return spec;
}

Result<PreTokenizerSpec> parse_punctuation(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto field, node.find("behavior"));
  auto behavior = SplitBehavior::kIsolated;
  if (field) {
    ASSIGN_OR_RETURN(behavior, parse_behavior(*field));
  }
  return CharacterSplitSpec{CharacterKind::kPunctuation, behavior};
}

Result<PreTokenizerSpec> parse_digits(const JsonNode& node) {
  ASSIGN_OR_RETURN(const bool individual, node.bool_at("individual_digits"));
  return CharacterSplitSpec{CharacterKind::kNumeric,
                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous};
}

Result<PreTokenizerSpec> parse_delimiter(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto field, node.at("delimiter"));
  ASSIGN_OR_RETURN(const auto character, field.character());
  return CharacterSplitSpec{CharacterKind::kOne, SplitBehavior::kRemoved, character};
}

Result<PrependScheme> parse_prepend_scheme(const JsonNode& node) {
  auto scheme = PrependScheme::kAlways;
  ASSIGN_OR_RETURN(const auto field, node.find("prepend_scheme"));
  if (field) {
    ASSIGN_OR_RETURN(const auto text, field->text());
    if (text != "always" && text != "first" && text != "never") return field->unsupported(text);
    scheme = text == "first" ? PrependScheme::kFirst : text == "never" ? PrependScheme::kNever : PrependScheme::kAlways;
  }
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.bool_or_null_at("add_prefix_space", true));
  if (add_prefix_space || scheme == PrependScheme::kNever) return scheme;
  if (field) return field->wrong("\"never\" beside add_prefix_space false");
  return node.wrong("prepend_scheme \"never\" beside add_prefix_space false");
}

Result<PreTokenizerSpec> parse_metaspace(const JsonNode& node) {
  MetaspaceSpec spec;
  ASSIGN_OR_RETURN(const auto replacement, node.at("replacement"));
  RETURN_IF_ERROR(replacement.character());
  ASSIGN_OR_RETURN(spec.replacement, replacement.text());
  ASSIGN_OR_RETURN(spec.prepend, parse_prepend_scheme(node));
  ASSIGN_OR_RETURN(spec.split, node.bool_or_null_at("split", true));
  ASSIGN_OR_RETURN(const auto unused, node.find_value("str_rep"));
  if (unused) RETURN_IF_ERROR(unused->text());
  return spec;
}

Result<PreTokenizerSpec> parse_fixed_length(const JsonNode& node) {
  FixedLengthSpec spec;
  ASSIGN_OR_RETURN(const auto length, node.find("length"));
  if (length) {
    ASSIGN_OR_RETURN(spec.length, length->count());
    if (spec.length == 0) return length->wrong("a length above 0");
  }
  return spec;
}

Result<PreTokenizerSpec> parse_one_pretokenizer(const JsonNode& node, std::string_view type) {
  if (type == "Split") return parse_split(node);
  if (type == "ByteLevel") return parse_byte_level(node);
  if (type == "Metaspace") return parse_metaspace(node);
  if (type == "Whitespace") return WordsSpec{};
  if (type == "WhitespaceSplit") return CharacterSplitSpec{CharacterKind::kWhiteSpace, SplitBehavior::kRemoved};
  if (type == "Punctuation") return parse_punctuation(node);
  if (type == "Digits") return parse_digits(node);
  if (type == "CharDelimiterSplit") return parse_delimiter(node);
  if (type == "UnicodeScripts") return UnicodeScriptsSpec{};
  if (type == "FixedLength") return parse_fixed_length(node);
  return node.unsupported(type.empty() ? "a pre-tokenizer of no known type" : type);
}

}  // namespace

Result<PatternSpec> parse_pattern(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto pattern, node.at("pattern"));
  ASSIGN_OR_RETURN(const auto choice, pattern.choice());
  if (choice.first != "String" && choice.first != "Regex") return pattern.unsupported(choice.first);
  ASSIGN_OR_RETURN(const auto text, choice.second.text());
  return PatternSpec{std::string(text), choice.first == "Regex"};
}

Result<ReplaceSpec> parse_replace(const JsonNode& node) {
  ReplaceSpec spec;
  ASSIGN_OR_RETURN(spec.pattern, parse_pattern(node));
  ASSIGN_OR_RETURN(spec.content, node.text_at("content"));
  return spec;
}

Status parse_normalizer(const JsonNode& node, std::vector<NormalizerSpec>& specs) {
  ASSIGN_OR_RETURN(const auto type, normalizer_type(node));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const auto items, node.items_at("normalizers"));
    for (const JsonNode& item : items) RETURN_IF_ERROR(parse_normalizer(item, specs));
    return {};
  }
  ASSIGN_OR_RETURN(auto spec, parse_one_normalizer(node, type));
  specs.push_back(std::move(spec));
  return {};
}

Status parse_pretokenizer(const JsonNode& node, std::vector<PreTokenizerSpec>& specs) {
  ASSIGN_OR_RETURN(const auto type, node.type());
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const auto items, node.items_at("pretokenizers"));
    for (const JsonNode& item : items) RETURN_IF_ERROR(parse_pretokenizer(item, specs));
    return {};
  }
  if (type == "BertPreTokenizer") {
    specs.push_back(CharacterSplitSpec{CharacterKind::kWhiteSpace, SplitBehavior::kRemoved});
    specs.push_back(CharacterSplitSpec{CharacterKind::kPunctuation, SplitBehavior::kIsolated});
    return {};
  }
  ASSIGN_OR_RETURN(auto spec, parse_one_pretokenizer(node, type));
  specs.push_back(std::move(spec));
  return {};
}

}  // namespace millrace::tokenizer
