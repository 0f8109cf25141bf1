// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "millrace/base/text/ascii.h"
#include "millrace/tokenizer/file/json_node.h"
#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/file/tokenizer_json_lists.h"

namespace millrace::tokenizer {
namespace {

Result<VocabularySpec> parse_vocab(const JsonNode& model, LongLists* lists) {
  if (lists != nullptr) return std::move(lists->vocab);
  ASSIGN_OR_RETURN(const auto node, model.at("vocab"));
  simdjson::dom::object fields;
  if (node.value.get(fields) != simdjson::SUCCESS) return node.wrong("an object");
  VocabularySpec vocab;
  vocab.reserve(fields.size());
  for (const auto [token, value] : fields) {
    uint64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS || id >= std::numeric_limits<uint32_t>::max())
      return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" has no valid id", node.place, token);
    vocab.emplace_back(token, static_cast<uint32_t>(id));
  }
  return vocab;
}

// One merge: "a b", or ["a", "b"]. nullopt for the comment that old files start with.
Result<std::optional<std::pair<std::string_view, std::string_view>>> parse_merge(const simdjson::dom::element& item,
                                                                                 bool as_pair) {
  const auto wrong = [] { return fail(ErrorCode::kInvalidArgument, "no merge of two tokens"); };
  if (as_pair) {
    simdjson::dom::array pair;
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

Result<MergesSpec> parse_merges(const JsonNode& model, LongLists* lists) {
  ASSIGN_OR_RETURN(const auto node, model.at("merges"));
  if (lists != nullptr) return std::move(lists->merges);
  simdjson::dom::array items;
  if (node.value.get(items) != simdjson::SUCCESS) return node.wrong("an array");
  MergesSpec merges;
  merges.reserve(items.size());
  const bool as_pairs = items.begin() != items.end() && (*items.begin()).is_array();
  int64_t index = 0;
  for (const simdjson::dom::element item : items) {
    auto merge = parse_merge(item, as_pairs);
    if (!merge)
      return with_context(Result<MergesSpec>(tl::unexpected(merge.error())), fmt::format("{}[{}]", node.place, index));
    if (*merge) merges.push_back(**merge);
    ++index;
  }
  return merges;
}

Status refuse_dropout(const JsonNode& model) {
  ASSIGN_OR_RETURN(const auto dropout, model.find_value("dropout"));
  if (!dropout) return {};
  double probability = 0;
  if (dropout->value.get(probability) != simdjson::SUCCESS) return dropout->wrong("a number");
  if (probability != 0) return model.unsupported("dropout (ids would be random)");
  return {};
}

Result<std::string> affix(const JsonNode& model, std::string_view key) {
  ASSIGN_OR_RETURN(const auto field, model.find_value(key));
  if (!field) return std::string();
  ASSIGN_OR_RETURN(const auto text, field->text());
  return std::string(text);
}

Result<ModelSpec> parse_bpe(const JsonNode& model, LongLists* lists) {
  BpeSpec spec;
  RETURN_IF_ERROR(refuse_dropout(model));
  ASSIGN_OR_RETURN(const auto unk_token, model.find_value("unk_token"));
  if (unk_token) {
    ASSIGN_OR_RETURN(const auto text, unk_token->text());
    spec.unk_token = std::string(text);
  }
  ASSIGN_OR_RETURN(spec.continuing_subword_prefix, affix(model, "continuing_subword_prefix"));
  ASSIGN_OR_RETURN(spec.end_of_word_suffix, affix(model, "end_of_word_suffix"));
  ASSIGN_OR_RETURN(spec.fuse_unk, model.bool_or_null_at("fuse_unk", false));
  ASSIGN_OR_RETURN(spec.byte_fallback, model.bool_or_null_at("byte_fallback", false));
  ASSIGN_OR_RETURN(spec.ignore_merges, model.bool_or_null_at("ignore_merges", false));
  ASSIGN_OR_RETURN(spec.vocab, parse_vocab(model, lists));
  ASSIGN_OR_RETURN(spec.merges, parse_merges(model, lists));
  return spec;
}

// A number as serde_json reads it, which is not always the nearest double: up to 19 digits as an integer, divided or
// multiplied by a power of ten. Sums of scores that should be equal differ by that.
double read_score(std::string_view text) {
  const bool negative = text.starts_with('-');
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool full = false, fraction = false;
  size_t i = negative;
  for (; i < text.size() && (is_digit(text[i]) || text[i] == '.'); ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(text[i] - '0');
    full = full || digits > (std::numeric_limits<uint64_t>::max() - digit) / 10;
    if (full) {
      exponent += !fraction;
      continue;
    }
    digits = digits * 10 + digit;
    exponent -= fraction;
  }
  if (i < text.size()) {  // the 'e'
    const bool down = text[i + 1] == '-';
    int64_t given = 0;
    for (i += 1 + (down || text[i + 1] == '+'); i < text.size(); ++i)
      given = std::min(given * 10 + text[i] - '0', 100000l);
    exponent += down ? -given : given;
  }
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  // A power of ten that is written out is the nearest double, which std::pow does not promise.
  static const std::vector<double> powers = [] {
    std::vector<double> result;
    for (int e = 0; e <= 308; ++e) result.push_back(std::strtod(fmt::format("1e{}", e).c_str(), nullptr));
    return result;
  }();
  const auto power = static_cast<size_t>(std::min<int64_t>(std::abs(exponent), 308));
  value = exponent < 0 ? value / powers[power] : value * powers[power];
  return negative ? -value : value;
}

// The document is walked once more, because only this way gives the characters of a number.
Status read_scores(std::string_view json, std::vector<std::pair<std::string_view, double>>& vocab) {
  namespace ondemand = simdjson::ondemand;
  const simdjson::padded_string padded(json);
  ondemand::parser parser;
  ondemand::document document;
  ondemand::array items;
  const auto damaged = [] {
    return fail(ErrorCode::kInvalidArgument, "model.vocab: expected tokens and their scores");
  };
  if (parser.iterate(padded).get(document) || document["model"]["vocab"].get_array().get(items)) return damaged();
  size_t i = 0;
  for (auto item : items) {
    ondemand::array pair;
    if (item.get_array().get(pair) || i == vocab.size()) return damaged();
    size_t field = 0;
    for (auto value : pair) {
      std::string_view text;
      if (value.raw_json_token().get(text)) return damaged();
      if (field++ == 0) continue;
      while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
      vocab[i].second = read_score(text);
    }
    ++i;
  }
  return {};
}

Status parse_scored_vocab(const JsonNode& node, UnigramSpec& spec) {
  simdjson::dom::array items;
  if (node.value.get(items) != simdjson::SUCCESS) return node.wrong("an array");
  spec.vocab.reserve(items.size());
  for (const simdjson::dom::element item : items) {
    simdjson::dom::array pair;
    std::string_view token;
    double score = 0;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(token) != simdjson::SUCCESS ||
        pair.at(1).get(score) != simdjson::SUCCESS)
      return fail(ErrorCode::kInvalidArgument, "{}[{}]: expected a token and its score", node.place, spec.vocab.size());
    spec.vocab.emplace_back(token, score);
  }
  return {};
}

Result<ModelSpec> parse_unigram(const JsonNode& model, std::string_view json) {
  UnigramSpec spec;
  ASSIGN_OR_RETURN(const auto vocab, model.at("vocab"));
  RETURN_IF_ERROR(parse_scored_vocab(vocab, spec));
  RETURN_IF_ERROR(read_scores(json, spec.vocab));
  ASSIGN_OR_RETURN(spec.byte_fallback, model.bool_at("byte_fallback", false));
  ASSIGN_OR_RETURN(const auto unk_id, model.find_value("unk_id"));
  if (!unk_id) return spec;
  ASSIGN_OR_RETURN(spec.unk_id, unk_id->id());
  if (*spec.unk_id >= spec.vocab.size()) return unk_id->wrong("the id of a token");
  return spec;
}

Result<ModelSpec> parse_word_piece(const JsonNode& model, LongLists* lists) {
  WordPieceSpec spec;
  ASSIGN_OR_RETURN(spec.vocab, parse_vocab(model, lists));
  ASSIGN_OR_RETURN(spec.unk_token, model.text_at("unk_token"));
  ASSIGN_OR_RETURN(spec.continuing_subword_prefix, model.text_at("continuing_subword_prefix"));
  ASSIGN_OR_RETURN(spec.max_input_chars_per_word, model.count_at("max_input_chars_per_word"));
  return spec;
}

Result<ModelSpec> parse_word_level(const JsonNode& model, LongLists* lists) {
  WordLevelSpec spec;
  ASSIGN_OR_RETURN(spec.vocab, parse_vocab(model, lists));
  ASSIGN_OR_RETURN(spec.unk_token, model.text_at("unk_token"));
  return spec;
}

}  // namespace

Result<ModelSpec> parse_model(const JsonNode& model, std::string_view json, LongLists* lists) {
  ASSIGN_OR_RETURN(const auto type, model.type());
  if (type == "BPE") return parse_bpe(model, lists);
  if (type == "Unigram") return parse_unigram(model, json);
  if (type == "WordPiece") return parse_word_piece(model, lists);
  if (type == "WordLevel") return parse_word_level(model, lists);
  if (model.has("type")) return model.unsupported(fmt::format("model type {}", type));
  // Files written before the tag existed are told apart by their shape, in the order in which `tokenizers` tries.
  if (model.has("merges")) return parse_bpe(model, lists);
  if (model.has("max_input_chars_per_word")) return parse_word_piece(model, lists);
  if (model.has("unk_token")) return parse_word_level(model, lists);
  if (model.has("vocab")) return parse_unigram(model, json);
  return model.unsupported("a model of no known type");
}

}  // namespace millrace::tokenizer
