// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/base/text/strings.h"
#include "millrace/storage/glob.h"
#include "millrace/storage/url.h"
#include "millrace/tokenizer/file/tiktoken.h"

namespace millrace::prepare {

namespace {

using Json = nlohmann::json;
using tokenizer::TiktokenFacts;

constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr int64_t kMostBytesBeside = 64 << 20;

// A file beside another one; nullopt: there is none. Errors: those of reading.
Result<std::optional<std::string>> read_beside(const Location& file, std::string_view name) {
  const size_t slash = file.key.rfind('/');
  const std::string key =
      slash == std::string::npos ? std::string(name) : file.key.substr(0, slash + 1) + std::string(name);
  auto text = read_object(*file.storage, key, kMostBytesBeside);
  if (text) return std::optional(*std::move(text));
  if (text.error().code() == ErrorCode::kNotFound) return std::optional<std::string>();
  return tl::unexpected(std::move(text).error());
}

// The expression of the program beside the file whose name begins with "tokenization_".
Result<std::string> pattern_of_program(const std::string& url) {
  const size_t slash = url.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : url.substr(0, slash);
  ASSIGN_OR_RETURN(const auto programs, find_matches(folder + "/tokenization_*.py"));
  for (const Match& program : programs) {
    ASSIGN_OR_RETURN(const Location at, open_url(program.url));
    ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key, kMostBytesBeside));
    if (auto pattern = tokenizer::pattern_in_python(text)) return *std::move(pattern);
  }
  return std::string();
}

// `added_tokens_decoder` of a tokenizer_config.json. Errors: invalid_argument.
Result<std::vector<std::pair<std::string, uint32_t>>> special_tokens_of(std::string_view config) {
  std::vector<std::pair<std::string, uint32_t>> tokens;
  const Json json = Json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return fail(ErrorCode::kInvalidArgument, "tokenizer_config.json: not a JSON object");
  const auto decoder = json.find("added_tokens_decoder");
  if (decoder == json.end() || !decoder->is_object()) return tokens;
  for (const auto& [key, token] : decoder->items()) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const auto content = token.is_object() ? token.find("content") : token.end();
    if (error != std::errc() || end != key.data() + key.size() || !token.is_object() || content == token.end() ||
        !content->is_string()) {
      return fail(ErrorCode::kInvalidArgument, "tokenizer_config.json: added_tokens_decoder: {}: no token", key);
    }
    tokens.emplace_back(content->get<std::string>(), id);
  }
  std::ranges::sort(tokens, {}, &std::pair<std::string, uint32_t>::second);
  return tokens;
}

Result<TiktokenFacts> facts_of(const Location& file, const std::string& url) {
  const std::string_view name = base_name(file.key);
  TiktokenFacts facts = tokenizer::tiktoken_encoding(name.substr(0, name.find('.'))).value_or(TiktokenFacts());
  ASSIGN_OR_RETURN(const auto given, read_beside(file, std::string(name) + ".pattern"));
  if (given) {
    const std::string_view text = trimmed(*given);
    facts = tokenizer::tiktoken_encoding(text).value_or(TiktokenFacts{std::string(text), {}});
  } else if (facts.pattern.empty()) {
    ASSIGN_OR_RETURN(facts.pattern, pattern_of_program(url));
  }
  if (facts.pattern.empty()) {
    return fail(
        ErrorCode::kInvalidArgument,
        "{}: a file of tiktoken does not say how it cuts text into words: put the tokenization_*.py of the model "
        "beside it, or write the expression, or the name of an encoding (cl100k_base), into {}.pattern",
        url, name);
  }
  ASSIGN_OR_RETURN(const auto config, read_beside(file, "tokenizer_config.json"));
  if (config) {
    ASSIGN_OR_RETURN(auto special, special_tokens_of(*config));
    if (!special.empty()) facts.special_tokens = std::move(special);
  }
  return facts;
}

// Whether a file that begins so is one of tiktoken. Errors: invalid_argument (only its name says so).
Result<bool> is_of_tiktoken(const Location& file, std::string_view begin, const std::string& url) {
  if (tokenizer::is_tiktoken(begin)) return true;
  const std::string_view name = base_name(file.key);
  if (!name.ends_with(".model") && !name.ends_with(".tiktoken")) return false;
  if (trimmed(begin).starts_with('{')) return false;  // a tokenizer.json by another name
  return fail(ErrorCode::kInvalidArgument, "{}: {}; a file of tiktoken has lines of a token in base64 and its number",
              url, begin.empty() ? "empty" : "not a file of tiktoken");
}

}  // namespace

Result<std::string> read_tokenizer(const std::string& url) {
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  ASSIGN_OR_RETURN(std::string text, read_object(*at.storage, at.key, kMostBytes));
  ASSIGN_OR_RETURN(const bool is_tiktoken, is_of_tiktoken(at, text, url));
  if (!is_tiktoken) return text;
  ASSIGN_OR_RETURN(const TiktokenFacts facts, facts_of(at, url));
  return tokenizer::tokenizer_json_of(text, facts, url);
}

Result<std::shared_ptr<const tokenizer::Tokenizer>> load_tokenizer(const std::string& url) {
  constexpr int64_t kBegin = 1024;
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  std::string begin(static_cast<size_t>(std::min(file->size(), kBegin)), '\0');
  RETURN_IF_ERROR(file->read_at(0, std::as_writable_bytes(std::span(begin))));
  ASSIGN_OR_RETURN(const bool is_tiktoken, is_of_tiktoken(at, begin, url));
  if (!is_tiktoken) return tokenizer::Tokenizer::from_file(*file, url);
  ASSIGN_OR_RETURN(const std::string json, read_tokenizer(url));
  return tokenizer::Tokenizer::from_json(json, url);
}

}  // namespace millrace::prepare
