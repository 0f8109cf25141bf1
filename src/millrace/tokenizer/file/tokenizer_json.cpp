// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/file/tokenizer_json.h"

#include <algorithm>
#include <set>

#include "millrace/base/log.h"
#include "millrace/tokenizer/file/json_node.h"
#include "millrace/tokenizer/file/tokenizer_json_lists.h"

namespace millrace::tokenizer {
namespace {

Result<AddedTokenSpec> parse_added_token(const JsonNode& node) {
  AddedTokenSpec token;
  ASSIGN_OR_RETURN(const auto content, node.text_at("content"));
  token.content = content;
  ASSIGN_OR_RETURN(token.id, node.id_at("id"));
  ASSIGN_OR_RETURN(token.single_word, node.bool_at("single_word"));
  ASSIGN_OR_RETURN(token.lstrip, node.bool_at("lstrip"));
  ASSIGN_OR_RETURN(token.rstrip, node.bool_at("rstrip"));
  ASSIGN_OR_RETURN(token.normalized, node.bool_at("normalized"));
  ASSIGN_OR_RETURN(token.special, node.bool_at("special"));
  return token;
}

Status check_choice(const JsonNode& node, std::string_view key, std::initializer_list<std::string_view> choices) {
  ASSIGN_OR_RETURN(const auto field, node.at(key));
  ASSIGN_OR_RETURN(const auto text, field.text());
  return std::find(choices.begin(), choices.end(), text) != choices.end() ? Status() : field.unsupported(text);
}

Status check_truncation(const JsonNode& node) {
  if (node.has("direction")) RETURN_IF_ERROR(check_choice(node, "direction", {"Left", "Right"}));
  RETURN_IF_ERROR(node.count_at("max_length"));
  RETURN_IF_ERROR(check_choice(node, "strategy", {"LongestFirst", "OnlyFirst", "OnlySecond"}));
  RETURN_IF_ERROR(node.count_at("stride"));
  return {};
}

Status check_padding(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto strategy, node.at("strategy"));
  if (strategy.is_object()) {
    ASSIGN_OR_RETURN(const auto choice, strategy.choice());
    if (choice.first != "Fixed") return strategy.unsupported(choice.first);
    RETURN_IF_ERROR(choice.second.count());
  } else {
    RETURN_IF_ERROR(check_choice(node, "strategy", {"BatchLongest"}));
  }
  RETURN_IF_ERROR(check_choice(node, "direction", {"Left", "Right"}));
  ASSIGN_OR_RETURN(const auto multiple, node.find_value("pad_to_multiple_of"));
  if (multiple) RETURN_IF_ERROR(multiple->count());
  RETURN_IF_ERROR(node.id_at("pad_id"));
  RETURN_IF_ERROR(node.id_at("pad_type_id"));
  RETURN_IF_ERROR(node.text_at("pad_token"));
  return {};
}

// `tokenizers` reads no file that is nested deeper, and takes a key that is there twice now for an error, now for the
// last one, so that is refused. The vocabulary and the merges, which may be large, are checked where they are read.
Status check_nesting(const JsonNode& node, int depth) {
  constexpr int kDeepest = 127;
  if (depth > kDeepest) return node.unsupported("nesting as deep as this");
  simdjson::dom::object fields;
  if (node.value.get(fields) == simdjson::SUCCESS) {
    std::set<std::string_view> keys;
    for (const auto& [key, value] : fields) {
      const JsonNode field{value, fmt::format("{}.{}", node.place, key)};
      if (!keys.insert(key).second) return field.unsupported("a key that is there twice");
      if (field.place != "the file.model.vocab" && field.place != "the file.model.merges")
        RETURN_IF_ERROR(check_nesting(field, depth + 1));
    }
  }
  simdjson::dom::array items;
  if (node.value.get(items) == simdjson::SUCCESS)
    for (const simdjson::dom::element item : items)
      if (item.is_object() || item.is_array()) RETURN_IF_ERROR(check_nesting({item, node.place}, depth + 1));
  return {};
}

Status check_top_level(const JsonNode& root) {
  constexpr std::string_view kKnown[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                         "pre_tokenizer", "post_processor", "decoder", "model"};
  RETURN_IF_ERROR(check_nesting(root, 1));
  simdjson::dom::object fields;
  if (root.value.get(fields) != simdjson::SUCCESS) return root.wrong("an object");
  for (const auto& [key, value] : fields)
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) return root.unsupported(key);
  if (root.has("version")) RETURN_IF_ERROR(check_choice(root, "version", {"1.0"}));
  constexpr std::pair<const char*, Status (*)(const JsonNode&)> kSettings[] = {{"truncation", check_truncation},
                                                                               {"padding", check_padding}};
  for (const auto& [key, check] : kSettings) {
    ASSIGN_OR_RETURN(const auto setting, root.find_value(key));
    if (!setting) continue;
    RETURN_IF_ERROR(check(*setting));
    log(LogLevel::kWarning, "tokenizer: the {} that the file asks for is not applied", key);
  }
  return {};
}

Status parse_components(const JsonNode& root, std::string_view json, LongLists* lists, TokenizerSpec& spec) {
  RETURN_IF_ERROR(check_top_level(root));
  ASSIGN_OR_RETURN(const auto model, root.at("model"));
  ASSIGN_OR_RETURN(spec.model, parse_model(model, json, lists));
  ASSIGN_OR_RETURN(const auto normalizer, root.find_value("normalizer"));
  if (normalizer) RETURN_IF_ERROR(parse_normalizer(*normalizer, spec.normalizers));
  ASSIGN_OR_RETURN(const auto pretokenizer, root.find_value("pre_tokenizer"));
  if (pretokenizer) RETURN_IF_ERROR(parse_pretokenizer(*pretokenizer, spec.pretokenizers));
  ASSIGN_OR_RETURN(const auto post_processor, root.find_value("post_processor"));
  if (post_processor) RETURN_IF_ERROR(parse_post_processor(*post_processor, spec.post_processor));
  ASSIGN_OR_RETURN(const auto decoder, root.find_value("decoder"));
  if (decoder) RETURN_IF_ERROR(parse_decoder(*decoder, spec.decoders.emplace()));
  ASSIGN_OR_RETURN(const auto added_tokens, root.find("added_tokens"));
  if (added_tokens) {
    ASSIGN_OR_RETURN(spec.added_tokens, parse_added_tokens(*added_tokens));
  }
  return {};
}

}  // namespace

Result<std::vector<AddedTokenSpec>> parse_added_tokens(const JsonNode& node) {
  std::vector<AddedTokenSpec> tokens;
  ASSIGN_OR_RETURN(const auto items, node.items());
  for (const JsonNode& item : items) {
    ASSIGN_OR_RETURN(auto token, parse_added_token(item));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Result<TokenizerSpec> parse_tokenizer_json(std::string_view json) {
  struct Storage {
    simdjson::dom::parser parser;
    std::optional<LongLists> lists;
  };
  const auto storage = std::make_shared<Storage>();
  auto& [parser, lists] = *storage;
  simdjson::dom::element root;
  lists = read_long_lists(json);
  if (lists && parser.parse(lists->rest).get(root) != simdjson::SUCCESS) lists.reset();
  if (!lists)
    if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS)
      return fail(ErrorCode::kInvalidArgument, "not JSON: {}", simdjson::error_message(error));
  TokenizerSpec spec;
  spec.storage = storage;
  RETURN_IF_ERROR(parse_components({root}, json, lists ? &*lists : nullptr, spec));
  return spec;
}

}  // namespace millrace::tokenizer
