// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/tokenizer_json.h"

#include "millrace/base/log.h"
#include "millrace/tokenizer/json_node.h"

namespace millrace::tokenizer {
namespace {

Result<AddedTokenSpec> parse_added_token(const JsonNode& node) {
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

Status check_top_level(const JsonNode& root) {
  ASSIGN_OR_RETURN(const auto version, root.find("version"));
  if (version) {
    ASSIGN_OR_RETURN(const auto text, version->text());
    if (text != "1.0") return version->unsupported(text);
  }
  for (const char* key : {"truncation", "padding"}) {
    ASSIGN_OR_RETURN(const auto setting, root.find(key));
    if (setting) log(LogLevel::kWarning, "tokenizer: the {} that the file asks for is not applied", key);
  }
  return {};
}

Status parse_components(const JsonNode& root, std::string_view json, TokenizerSpec& spec) {
  RETURN_IF_ERROR(check_top_level(root));
  ASSIGN_OR_RETURN(const auto model, root.at("model"));
  ASSIGN_OR_RETURN(spec.model, parse_model(model, json));
  ASSIGN_OR_RETURN(const auto normalizer, root.find("normalizer"));
  if (normalizer) RETURN_IF_ERROR(parse_normalizer(*normalizer, spec.normalizers));
  ASSIGN_OR_RETURN(const auto pretokenizer, root.find("pre_tokenizer"));
  if (pretokenizer) RETURN_IF_ERROR(parse_pretokenizer(*pretokenizer, spec.pretokenizers));
  ASSIGN_OR_RETURN(const auto post_processor, root.find("post_processor"));
  if (post_processor) RETURN_IF_ERROR(parse_post_processor(*post_processor, spec.post_processor));
  ASSIGN_OR_RETURN(const auto decoder, root.find("decoder"));
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
  const auto parser = std::make_shared<simdjson::dom::parser>();
  simdjson::dom::element root;
  if (const auto error = parser->parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS)
    return fail(ErrorCode::kInvalidArgument, "not JSON: {}", simdjson::error_message(error));
  TokenizerSpec spec;
  spec.storage = parser;
  RETURN_IF_ERROR(parse_components({root}, json, spec));
  return spec;
}

}  // namespace millrace::tokenizer
