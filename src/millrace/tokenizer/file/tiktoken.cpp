// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/file/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <tuple>
#include <unordered_map>

#include "millrace/base/text/strings.h"
#include "millrace/tokenizer/text/byte_map.h"
#include "millrace/tokenizer/text/precompiled.h"

namespace millrace::tokenizer {

namespace {

struct Token {
  std::string bytes;
  uint32_t rank = 0;
};
using Ranks = std::unordered_map<std::string_view, uint32_t>;

std::optional<Token> parse_line(std::string_view line) {
  const size_t blank = line.find(' ');
  if (blank == 0 || blank == line.npos) return std::nullopt;
  Token token;
  const std::string_view digits = line.substr(blank + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), token.rank);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, blank));
  if (!bytes || bytes->empty()) return std::nullopt;
  token.bytes = *std::move(bytes);
  return token;
}

Result<std::vector<Token>> parse_tokens(std::string_view file, std::string_view name) {
  std::vector<Token> tokens;
  for (int64_t number = 1; !file.empty(); ++number) {
    const std::string_view line = take_line(file);
    if (line.empty()) continue;
    auto token = parse_line(line);
    if (!token) {
      return fail(ErrorCode::kInvalidArgument, "{}: line {}: expected a token in base64, a blank and its rank", name,
                  number);
    }
    tokens.push_back(*std::move(token));
  }
  std::ranges::sort(tokens, {}, &Token::rank);
  return tokens;
}

Result<Ranks> ranks_of(const std::vector<Token>& tokens, std::string_view name) {
  Ranks ranks;
  ranks.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && tokens[i].rank == tokens[i - 1].rank) {
      return fail(ErrorCode::kInvalidArgument, "{}: two tokens have the rank {}", name, tokens[i].rank);
    }
    if (!ranks.emplace(tokens[i].bytes, tokens[i].rank).second) {
      return fail(ErrorCode::kInvalidArgument, "{}: the token of rank {} comes twice", name, tokens[i].rank);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    if (!ranks.contains(std::string_view(&character, 1))) {
      return fail(ErrorCode::kInvalidArgument, "{}: the byte {:#04x} has no token, so not every text has ids", name,
                  byte);
    }
  }
  return ranks;
}

void append_quoted(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_spelled(std::string_view bytes, std::string& out) {
  std::string spelled;
  append_spelling_of(bytes, spelled);
  append_quoted(spelled, out);
}

// The pairs of tokens that make up `token`, in the order in which the merges of a tokenizer.json are tried.
void append_merges(const Token& token, const Ranks& ranks, std::string& out) {
  const std::string_view bytes = token.bytes;
  std::vector<std::tuple<uint32_t, uint32_t, size_t>> pairs;
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    const auto left = ranks.find(bytes.substr(0, cut)), right = ranks.find(bytes.substr(cut));
    if (left != ranks.end() && right != ranks.end()) pairs.emplace_back(left->second, right->second, cut);
  }
  std::ranges::sort(pairs);
  for (const auto& [left, right, cut] : pairs) {
    out += '[';
    append_spelled(bytes.substr(0, cut), out);
    out += ',';
    append_spelled(bytes.substr(cut), out);
    out += "],";
  }
}

Status check_special(const TiktokenFacts& facts, const std::vector<Token>& tokens, std::string_view name) {
  std::vector<uint32_t> ids;
  for (const auto& [content, id] : facts.special_tokens) {
    const auto same = std::ranges::lower_bound(tokens, id, {}, &Token::rank);
    if ((same != tokens.end() && same->rank == id) || std::ranges::find(ids, id) != ids.end()) {
      return fail(ErrorCode::kInvalidArgument, "{}: the special token {} has the id {} of another token", name, content,
                  id);
    }
    ids.push_back(id);
  }
  return {};
}

// The string that begins at `at`, which moves behind it: raw, or without a backslash, in one or three quotes.
std::optional<std::string_view> take_python_string(std::string_view program, size_t& at) {
  const bool is_raw = at < program.size() && (program[at] == 'r' || program[at] == 'R');
  size_t begin = at + (is_raw ? 1 : 0);
  if (begin >= program.size() || (program[begin] != '"' && program[begin] != '\'')) return std::nullopt;
  const std::string three(3, program[begin]);
  const std::string quotes = program.substr(begin, 3) == three ? three : three.substr(0, 1);
  begin += quotes.size();
  size_t end = program.find(quotes, begin);
  while (is_raw && end != program.npos && program[end - 1] == '\\') end = program.find(quotes, end + 1);
  if (end == program.npos) return std::nullopt;
  const std::string_view text = program.substr(begin, end - begin);
  at = end + quotes.size();
  if (!is_raw && text.find('\\') != text.npos) return std::nullopt;
  return text;
}

void skip_blanks(std::string_view program, size_t& at) {
  while (at < program.size() && (std::string_view(" \t\r\n(").find(program[at]) != std::string_view::npos)) ++at;
}

// Whether a "+" makes an interval possessive. Oniguruma, whose expressions a tokenizer.json has, reads it as a second
// quantifier.
bool has_possessive_interval(std::string_view pattern) {
  for (size_t end = pattern.find("}+"); end != pattern.npos; end = pattern.find("}+", end + 1)) {
    const size_t begin = pattern.rfind('{', end);
    if (begin == pattern.npos || begin + 1 == end) continue;
    const std::string_view inside = pattern.substr(begin + 1, end - begin - 1);
    const bool is_code = begin >= 2 && pattern[begin - 1] == 'x' && pattern[begin - 2] == '\\';
    if (!is_code && inside.find_first_not_of("0123456789,") == inside.npos) return true;
  }
  return false;
}

// cl100k_base and the like, as tiktoken_ext/openai_public.py has them, but for a "+" behind {1,3}, which nothing
// follows.
constexpr std::string_view kR50k = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr std::string_view kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

bool is_tiktoken(std::string_view file) {
  const std::string_view line = take_line(file);
  return line.size() < 1024 && parse_line(line).has_value();
}

std::optional<TiktokenFacts> tiktoken_encoding(std::string_view name) {
  if (name == "r50k_base" || name == "p50k_base") return TiktokenFacts{std::string(kR50k), {{"<|endoftext|>", 50256}}};
  if (name == "cl100k_base") {
    return TiktokenFacts{std::string(kCl100k),
                         {{"<|endoftext|>", 100257},
                          {"<|fim_prefix|>", 100258},
                          {"<|fim_middle|>", 100259},
                          {"<|fim_suffix|>", 100260},
                          {"<|endofprompt|>", 100276}}};
  }
  if (name == "o200k_base") {
    return TiktokenFacts{std::string(kO200k), {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}};
  }
  return std::nullopt;
}

std::optional<std::string> pattern_in_python(std::string_view program) {
  for (size_t at = program.find("pat_str"); at != program.npos; at = program.find("pat_str", at + 1)) {
    size_t here = at + std::string_view("pat_str").size();
    skip_blanks(program, here);
    if (here >= program.size() || program[here] != '=') continue;
    ++here;
    skip_blanks(program, here);
    constexpr std::string_view kJoin = "\"|\".join(";
    if (!program.substr(here).starts_with(kJoin)) {
      if (const auto text = take_python_string(program, here)) return std::string(*text);
      continue;
    }
    here += kJoin.size();
    skip_blanks(program, here);
    if (here >= program.size() || program[here] != '[') continue;
    std::string pattern;
    for (++here;; ++here) {
      skip_blanks(program, here);
      if (here < program.size() && program[here] == ']') return pattern;
      const auto text = take_python_string(program, here);
      if (!text) break;
      if (!pattern.empty()) pattern += '|';
      pattern += *text;
      skip_blanks(program, here);
      if (here < program.size() && program[here] == ']') return pattern;
      if (here >= program.size() || program[here] != ',') break;
    }
  }
  return std::nullopt;
}

Result<std::string> tokenizer_json_of(std::string_view file, const TiktokenFacts& facts, std::string_view name) {
  ASSIGN_OR_RETURN(const std::vector<Token> tokens, parse_tokens(file, name));
  ASSIGN_OR_RETURN(const Ranks ranks, ranks_of(tokens, name));
  RETURN_IF_ERROR(check_special(facts, tokens, name));
  if (has_possessive_interval(facts.pattern)) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: the expression has an interval with a + behind it, such as {{1,3}}+, which is another thing in a "
                "tokenizer.json: write (?>...{{1,3}}) into a file NAME.pattern beside it",
                name);
  }
  std::string json = R"({"version":"1.0","added_tokens":[)";
  for (const auto& [content, id] : facts.special_tokens) {
    fmt::format_to(std::back_inserter(json), R"({{"id":{},"content":)", id);
    append_quoted(content, json);
    json += R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},)";
  }
  if (json.ends_with(',')) json.pop_back();
  json +=
      R"(],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)";
  append_quoted(facts.pattern, json);
  json +=
      R"(},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)"
      R"("post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)"
      R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":true,"vocab":{)";
  for (const Token& token : tokens) {
    append_spelled(token.bytes, json);
    fmt::format_to(std::back_inserter(json), ":{},", token.rank);
  }
  for (const auto& [content, id] : facts.special_tokens) {
    append_quoted(content, json);
    fmt::format_to(std::back_inserter(json), ":{},", id);
  }
  json.back() = '}';
  json += R"(,"merges":[)";
  for (const Token& token : tokens) append_merges(token, ranks, json);
  if (json.ends_with(',')) json.pop_back();
  json += "]}}";
  return json;
}

}  // namespace millrace::tokenizer
