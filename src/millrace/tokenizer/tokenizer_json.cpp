// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/tokenizer_json.h"

#include <simdjson.h>

#include <limits>
#include <optional>

#include "millrace/base/log.h"

namespace millrace::tokenizer {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::string_view kRoot = "the file";

// A JSON value and the place it has in the file, for messages.
struct Node {
  element value;
  std::string place;

  tl::unexpected<Error> wrong(std::string_view expected) const {
    return fail(ErrorCode::kInvalidArgument, "{}: expected {}", place, expected);
  }

  // Nothing is an absent field or null.
  Result<std::optional<Node>> find(std::string_view key) const {
    object fields;
    if (value.get(fields) != simdjson::SUCCESS) return wrong("an object");
    element field;
    if (fields.at_key(key).get(field) != simdjson::SUCCESS || field.is_null()) return std::nullopt;
    return Node{field, place == kRoot ? std::string(key) : fmt::format("{}.{}", place, key)};
  }
  Result<Node> at(std::string_view key) const {
    ASSIGN_OR_RETURN(auto field, find(key));
    if (!field) return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is missing", place, key);
    return std::move(*field);
  }

  Result<bool> boolean() const {
    bool result = false;
    if (value.get(result) != simdjson::SUCCESS) return wrong("true or false");
    return result;
  }
  Result<std::string_view> text() const {
    std::string_view result;
    if (value.get(result) != simdjson::SUCCESS) return wrong("a string");
    return result;
  }
  Result<uint32_t> id() const {
    uint64_t result = 0;
    if (value.get(result) != simdjson::SUCCESS || result > std::numeric_limits<uint32_t>::max())
      return wrong("a token id");
    return static_cast<uint32_t>(result);
  }
  Result<std::vector<Node>> items() const {
    array elements;
    if (value.get(elements) != simdjson::SUCCESS) return wrong("an array");
    std::vector<Node> result;
    for (const element item : elements) result.push_back({item, fmt::format("{}[{}]", place, result.size())});
    return result;
  }

  Result<bool> bool_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.boolean();
  }
  Result<bool> bool_at(std::string_view key, bool when_absent) const {
    ASSIGN_OR_RETURN(const auto field, find(key));
    return field ? field->boolean() : when_absent;
  }
  Result<std::string_view> text_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.text();
  }
  // The "type" of a component.
  Result<std::string_view> type() const { return text_at("type"); }
};

tl::unexpected<Error> unsupported(const Node& node, std::string_view what) {
  return fail(ErrorCode::kUnsupported, "{}: {} is not supported", node.place, what);
}

// ---- added tokens

Result<AddedTokenSpec> parse_added_token(const Node& node) {
  AddedTokenSpec token;
  ASSIGN_OR_RETURN(const auto content, node.text_at("content"));
  token.content = content;
  ASSIGN_OR_RETURN(const auto id, node.at("id"));
  ASSIGN_OR_RETURN(token.id, id.id());
  ASSIGN_OR_RETURN(token.single_word, node.bool_at("single_word"));
  ASSIGN_OR_RETURN(token.lstrip, node.bool_at("lstrip"));
  ASSIGN_OR_RETURN(token.rstrip, node.bool_at("rstrip"));
  ASSIGN_OR_RETURN(token.normalized, node.bool_at("normalized"));
  ASSIGN_OR_RETURN(token.special, node.bool_at("special"));
  return token;
}

// ---- pre-tokenizer

Status parse_byte_level(const Node& node, bool after_split, PretokenizerSpec& spec) {
  ASSIGN_OR_RETURN(spec.add_prefix_space, node.bool_at("add_prefix_space"));
  ASSIGN_OR_RETURN(const bool use_regex, node.bool_at("use_regex", true));
  if (!after_split) {
    // The regular expression that is built into ByteLevel, GPT-2's.
    if (use_regex) spec.pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    return {};
  }
  if (use_regex) return unsupported(node, "ByteLevel with use_regex after Split");
  if (spec.add_prefix_space) return unsupported(node, "ByteLevel with add_prefix_space after Split");
  return {};
}

Status parse_split(const Node& node, PretokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const auto pattern, node.at("pattern"));
  ASSIGN_OR_RETURN(const auto regex, pattern.find("Regex"));
  if (!regex) return unsupported(pattern, "a Split pattern that is no Regex");
  ASSIGN_OR_RETURN(const auto text, regex->text());
  if (text.empty()) return unsupported(pattern, "an empty pattern");
  ASSIGN_OR_RETURN(const auto behavior, node.text_at("behavior"));
  if (behavior != "Isolated") return unsupported(node, fmt::format("Split with behavior {}", behavior));
  ASSIGN_OR_RETURN(const bool invert, node.bool_at("invert"));
  if (invert) return unsupported(node, "Split with invert");
  spec.pattern = text;
  return {};
}

Status parse_pretokenizer(const std::optional<Node>& node, PretokenizerSpec& spec) {
  if (!node) return fail(ErrorCode::kUnsupported, "pre_tokenizer: a file without one is not supported");
  ASSIGN_OR_RETURN(const auto type, node->type());
  if (type == "ByteLevel") return parse_byte_level(*node, false, spec);
  if (type != "Sequence") return unsupported(*node, type);
  ASSIGN_OR_RETURN(const auto list, node->at("pretokenizers"));
  ASSIGN_OR_RETURN(const auto items, list.items());
  std::string types;
  for (const Node& item : items) {
    ASSIGN_OR_RETURN(const auto item_type, item.type());
    types += types.empty() ? "" : ", ";
    types += item_type;
  }
  if (types == "ByteLevel") return parse_byte_level(items[0], false, spec);
  if (types != "Split, ByteLevel") return unsupported(*node, fmt::format("Sequence[{}]", types));
  RETURN_IF_ERROR(parse_split(items[0], spec));
  return parse_byte_level(items[1], true, spec);
}

// ---- model

Status check_model_type(const Node& model) {
  ASSIGN_OR_RETURN(const auto type, model.find("type"));
  if (type) {
    ASSIGN_OR_RETURN(const auto name, type->text());
    return name == "BPE" ? Status() : Status(unsupported(model, fmt::format("model type {}", name)));
  }
  // Files written before the tag existed are told apart by their shape.
  ASSIGN_OR_RETURN(const auto merges, model.find("merges"));
  if (merges) return {};
  ASSIGN_OR_RETURN(const auto unk_id, model.find("unk_id"));
  ASSIGN_OR_RETURN(const auto word_limit, model.find("max_input_chars_per_word"));
  return unsupported(model, unk_id       ? "model type Unigram"
                            : word_limit ? "model type WordPiece"
                                         : "a model of no known type");
}

Status parse_vocab(const Node& node, BpeSpec& spec) {
  object fields;
  if (node.value.get(fields) != simdjson::SUCCESS) return node.wrong("an object");
  spec.vocab.reserve(fields.size());
  for (const auto [token, value] : fields) {
    uint64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS || id >= std::numeric_limits<uint32_t>::max())
      return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" has no valid id", node.place, token);
    spec.vocab.emplace_back(token, static_cast<uint32_t>(id));
  }
  return {};
}

// One merge: "a b", or ["a", "b"]. Nothing for the comment that old files start with.
Result<std::optional<std::pair<std::string_view, std::string_view>>> parse_merge(const element& item, bool as_pair) {
  const auto wrong = [] { return fail(ErrorCode::kInvalidArgument, "no merge of two tokens"); };
  if (as_pair) {
    array pair;
    std::string_view left, right;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
        pair.at(1).get(right) != simdjson::SUCCESS)
      return wrong();
    return std::pair(left, right);
  }
  std::string_view text;
  if (item.get(text) != simdjson::SUCCESS) return wrong();
  if (text.starts_with("#version")) return std::nullopt;
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return wrong();
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

Status parse_merges(const Node& node, BpeSpec& spec) {
  array items;
  if (node.value.get(items) != simdjson::SUCCESS) return node.wrong("an array");
  spec.merges.reserve(items.size());
  const bool as_pairs = items.begin() != items.end() && (*items.begin()).is_array();
  int64_t index = 0;
  for (const element item : items) {
    auto merge = parse_merge(item, as_pairs);
    if (!merge) return with_context(Status(tl::unexpected(merge.error())), fmt::format("{}[{}]", node.place, index));
    if (*merge) spec.merges.push_back(**merge);
    ++index;
  }
  return {};
}

Status refuse_affix(const Node& model, std::string_view key) {
  ASSIGN_OR_RETURN(const auto field, model.find(key));
  if (!field) return {};
  ASSIGN_OR_RETURN(const auto affix, field->text());
  return affix.empty() ? Status() : Status(unsupported(model, key));
}

Status parse_bpe(const Node& model, BpeSpec& spec) {
  RETURN_IF_ERROR(check_model_type(model));
  RETURN_IF_ERROR(refuse_affix(model, "continuing_subword_prefix"));
  RETURN_IF_ERROR(refuse_affix(model, "end_of_word_suffix"));
  ASSIGN_OR_RETURN(const auto dropout, model.find("dropout"));
  if (dropout) {
    double probability = 0;
    if (dropout->value.get(probability) != simdjson::SUCCESS) return dropout->wrong("a number");
    if (probability != 0) return unsupported(model, "dropout (ids would be random)");
  }
  ASSIGN_OR_RETURN(const auto unk_token, model.find("unk_token"));
  ASSIGN_OR_RETURN(const bool byte_fallback, model.bool_at("byte_fallback", false));
  spec.out_of_vocabulary_rule = unk_token ? "unk_token" : byte_fallback ? "byte_fallback" : "";
  ASSIGN_OR_RETURN(spec.ignore_merges, model.bool_at("ignore_merges", false));
  ASSIGN_OR_RETURN(const auto vocab, model.at("vocab"));
  RETURN_IF_ERROR(parse_vocab(vocab, spec));
  ASSIGN_OR_RETURN(const auto merges, model.at("merges"));
  return parse_merges(merges, spec);
}

// ---- post-processor

Status append_template_token(const Node& node, const Node& piece, std::vector<uint32_t>& ids) {
  ASSIGN_OR_RETURN(const auto name, piece.text_at("id"));
  ASSIGN_OR_RETURN(const auto tokens, node.at("special_tokens"));
  ASSIGN_OR_RETURN(const auto token, tokens.at(name));
  ASSIGN_OR_RETURN(const auto list, token.at("ids"));
  ASSIGN_OR_RETURN(const auto items, list.items());
  for (const Node& item : items) {
    ASSIGN_OR_RETURN(const auto id, item.id());
    ids.push_back(id);
  }
  return {};
}

Status parse_template(const Node& node, PostProcessorSpec& spec) {
  ASSIGN_OR_RETURN(const auto single, node.at("single"));
  ASSIGN_OR_RETURN(const auto pieces, single.items());
  int sequences = 0;
  for (const Node& piece : pieces) {
    ASSIGN_OR_RETURN(const auto special, piece.find("SpecialToken"));
    if (special) {
      RETURN_IF_ERROR(append_template_token(node, *special, sequences == 0 ? spec.before : spec.after));
      continue;
    }
    ASSIGN_OR_RETURN(const auto sequence, piece.at("Sequence"));
    ASSIGN_OR_RETURN(const auto id, sequence.text_at("id"));
    if (id != "A") return unsupported(single, fmt::format("the sequence {}", id));
    ++sequences;
  }
  if (sequences != 1) return unsupported(single, fmt::format("a template with {} times the text", sequences));
  return {};
}

Status parse_roberta(const Node& node, PostProcessorSpec& spec) {
  ASSIGN_OR_RETURN(const bool trim, node.bool_at("trim_offsets"));
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.bool_at("add_prefix_space"));
  if (trim) spec.trims.push_back(add_prefix_space);
  for (const auto& [key, ids] : {std::pair("cls", &spec.before), std::pair("sep", &spec.after)}) {
    ASSIGN_OR_RETURN(const auto pair, node.at(key));
    ASSIGN_OR_RETURN(const auto items, pair.items());
    if (items.size() != 2) return pair.wrong("a token and its id");
    ASSIGN_OR_RETURN(const auto id, items[1].id());
    ids->push_back(id);
  }
  return {};
}

Status parse_trimming(const Node& node, PostProcessorSpec& spec) {
  ASSIGN_OR_RETURN(const bool trim, node.bool_at("trim_offsets"));
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.bool_at("add_prefix_space"));
  if (trim) spec.trims.push_back(add_prefix_space);
  return {};
}

// `added` tells whether a component before this one already puts tokens around the text.
Status parse_post_processor(const Node& node, PostProcessorSpec& spec, bool& added) {
  ASSIGN_OR_RETURN(const auto type, node.type());
  if (type == "ByteLevel") {
    if (added) return unsupported(node, "ByteLevel after a component that adds tokens");
    return parse_trimming(node, spec);
  }
  if (type == "TemplateProcessing" || type == "RobertaProcessing") {
    if (added) return unsupported(node, "a second component that adds tokens");
    added = true;
    return type == "TemplateProcessing" ? parse_template(node, spec) : parse_roberta(node, spec);
  }
  if (type != "Sequence") return unsupported(node, type);
  ASSIGN_OR_RETURN(const auto list, node.at("processors"));
  ASSIGN_OR_RETURN(const auto items, list.items());
  for (const Node& item : items) RETURN_IF_ERROR(parse_post_processor(item, spec, added));
  return {};
}

// ---- the file

Status check_decoder(const std::optional<Node>& node) {
  if (!node) return fail(ErrorCode::kUnsupported, "decoder: a file without one is not supported");
  ASSIGN_OR_RETURN(const auto type, node->type());
  return type == "ByteLevel" ? Status() : Status(unsupported(*node, type));
}

Status check_top_level(const Node& root) {
  ASSIGN_OR_RETURN(const auto version, root.find("version"));
  if (version) {
    ASSIGN_OR_RETURN(const auto text, version->text());
    if (text != "1.0") return unsupported(*version, text);
  }
  ASSIGN_OR_RETURN(const auto normalizer, root.find("normalizer"));
  if (normalizer) {
    ASSIGN_OR_RETURN(const auto type, normalizer->type());
    return unsupported(*normalizer, type);
  }
  for (const char* key : {"truncation", "padding"}) {
    ASSIGN_OR_RETURN(const auto setting, root.find(key));
    if (setting) log(LogLevel::kWarning, "tokenizer: the {} that the file asks for is not applied", key);
  }
  return {};
}

Status parse_components(const Node& root, TokenizerSpec& spec) {
  RETURN_IF_ERROR(check_top_level(root));
  ASSIGN_OR_RETURN(const auto model, root.at("model"));
  RETURN_IF_ERROR(parse_bpe(model, spec.model));
  ASSIGN_OR_RETURN(const auto pretokenizer, root.find("pre_tokenizer"));
  RETURN_IF_ERROR(parse_pretokenizer(pretokenizer, spec.pretokenizer));
  ASSIGN_OR_RETURN(const auto post_processor, root.find("post_processor"));
  if (post_processor) {
    bool added = false;
    RETURN_IF_ERROR(parse_post_processor(*post_processor, spec.post_processor, added));
  }
  ASSIGN_OR_RETURN(const auto decoder, root.find("decoder"));
  RETURN_IF_ERROR(check_decoder(decoder));
  ASSIGN_OR_RETURN(const auto added_tokens, root.find("added_tokens"));
  if (!added_tokens) return {};
  ASSIGN_OR_RETURN(const auto items, added_tokens->items());
  for (const Node& item : items) {
    ASSIGN_OR_RETURN(auto token, parse_added_token(item));
    spec.added_tokens.push_back(std::move(token));
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view json) {
  const auto parser = std::make_shared<simdjson::dom::parser>();
  element root;
  if (const auto error = parser->parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS)
    return fail(ErrorCode::kInvalidArgument, "not JSON: {}", simdjson::error_message(error));
  TokenizerSpec spec;
  spec.storage = parser;
  RETURN_IF_ERROR(parse_components({root, std::string(kRoot)}, spec));
  return spec;
}

}  // namespace millrace::tokenizer
