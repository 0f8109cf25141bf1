// SPDX-License-Identifier: Apache-2.0
// What comes behind the model: post-processors and decoders. Many of them without a known "type" are told by their
// fields, in the order in which `tokenizers` tries.
#include <map>

#include "millrace/tokenizer/file/json_node.h"
#include "millrace/tokenizer/file/tokenizer_json.h"

namespace millrace::tokenizer {
namespace {

// ---- post-processors

using Ids = std::vector<uint32_t>;

void put_around(PostProcessorSpec& spec, const Ids& before, const Ids& after) {
  spec.before.insert(spec.before.begin(), before.begin(), before.end());
  spec.after.insert(spec.after.end(), after.begin(), after.end());
}

// The ids of the tokens that a template may name.
Result<std::map<std::string_view, Ids>> parse_template_tokens(const JsonNode& node) {
  std::map<std::string_view, Ids> result;
  simdjson::dom::object tokens;
  if (node.value.get(tokens) != simdjson::SUCCESS) return node.wrong("an object");
  for (const auto& [name, value] : tokens) {
    const JsonNode token{value, fmt::format("{}.{}", node.place, name)};
    RETURN_IF_ERROR(token.text_at("id"));
    ASSIGN_OR_RETURN(result[name], token.ids_at("ids"));
    ASSIGN_OR_RETURN(const auto names, token.items_at("tokens"));
    for (const JsonNode& item : names) RETURN_IF_ERROR(item.text());
  }
  return result;
}

struct TemplatePiece {
  bool is_text = false;
  std::string_view id;
};
Result<std::vector<TemplatePiece>> parse_template_pieces(const JsonNode& node) {
  std::vector<TemplatePiece> pieces;
  ASSIGN_OR_RETURN(const auto items, node.items());
  for (const JsonNode& item : items) {
    ASSIGN_OR_RETURN(const auto choice, item.choice());
    const auto& [kind, fields] = choice;
    if (kind != "SpecialToken" && kind != "Sequence") return item.unsupported(kind);
    ASSIGN_OR_RETURN(const auto id, fields.text_at("id"));
    if (kind == "Sequence" && id != "A" && id != "B") return item.unsupported(fmt::format("the sequence {}", id));
    RETURN_IF_ERROR(fields.id_at("type_id"));
    pieces.push_back({kind == "Sequence", id});
  }
  return pieces;
}

Status parse_template(const JsonNode& node, PostProcessorSpec& spec) {
  ASSIGN_OR_RETURN(const auto tokens_node, node.at("special_tokens"));
  ASSIGN_OR_RETURN(const auto tokens, parse_template_tokens(tokens_node));
  ASSIGN_OR_RETURN(const auto pair, node.at("pair"));  // not used
  RETURN_IF_ERROR(parse_template_pieces(pair));
  ASSIGN_OR_RETURN(const auto single, node.at("single"));
  ASSIGN_OR_RETURN(const auto pieces, parse_template_pieces(single));
  Ids before, after;
  int sequences = 0;
  for (const TemplatePiece& piece : pieces) {
    if (piece.is_text && piece.id != "A") return single.unsupported(fmt::format("the sequence {}", piece.id));
    sequences += piece.is_text;
    if (piece.is_text) continue;
    const auto token = tokens.find(piece.id);
    if (token == tokens.end()) return single.unsupported(fmt::format("{}, which is not in special_tokens,", piece.id));
    Ids& ids = sequences == 0 ? before : after;
    ids.insert(ids.end(), token->second.begin(), token->second.end());
  }
  if (sequences != 1) return single.unsupported(fmt::format("a template with {} times the text", sequences));
  put_around(spec, before, after);
  return {};
}

// What came before, in a Sequence.
struct Processed {
  bool by_template = false;  // which has cut the tokens into parts that only it knows
  bool by_bert = false;      // or Roberta
};

Status parse_trimming(const JsonNode& node, const Processed& before, PostProcessorSpec& spec) {
  ASSIGN_OR_RETURN(const bool trim, node.bool_at("trim_offsets"));
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.bool_at("add_prefix_space"));
  if (trim) spec.trims.push_back({add_prefix_space, before.by_bert});
  return {};
}

// BertProcessing, and RobertaProcessing behind its trimming.
Status parse_cls_and_sep(const JsonNode& node, PostProcessorSpec& spec) {
  Ids before, after;
  for (const auto& [key, ids] : {std::pair("cls", &before), std::pair("sep", &after)}) {
    ASSIGN_OR_RETURN(const auto pair, node.at(key));
    ASSIGN_OR_RETURN(const auto items, pair.items());
    if (items.size() != 2) return pair.wrong("a token and its id");
    RETURN_IF_ERROR(items[0].text());
    ASSIGN_OR_RETURN(const auto id, items[1].id());
    ids->push_back(id);
  }
  put_around(spec, before, after);
  return {};
}

// `tokenizers` looks at the fields first, and at "type" only for those whose fields do not tell.
Result<std::string_view> post_processor_type(const JsonNode& node) {
  if (node.is_object() && node.has("sep") && node.has("cls"))
    return std::string_view(node.has("trim_offsets") && node.has("add_prefix_space") ? "RobertaProcessing"
                                                                                     : "BertProcessing");
  ASSIGN_OR_RETURN(const auto type, node.type());
  if (type == "ByteLevel" || type == "Sequence") return type;
  if (node.has("single") && node.has("special_tokens")) return "TemplateProcessing";
  return type;
}

Status parse_one_post_processor(const JsonNode& node, PostProcessorSpec& spec, Processed& before) {
  ASSIGN_OR_RETURN(const auto type, post_processor_type(node));
  if (type == "ByteLevel") {
    RETURN_IF_ERROR(node.bool_at("use_regex", true));
    return parse_trimming(node, before, spec);
  }
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const auto items, node.items_at("processors"));
    for (const JsonNode& item : items) RETURN_IF_ERROR(parse_one_post_processor(item, spec, before));
    return {};
  }
  const bool is_template = type == "TemplateProcessing";
  if (!is_template && type != "BertProcessing" && type != "RobertaProcessing")
    return node.unsupported(type.empty() ? "a post-processor of no known type" : type);
  if (before.by_template) return node.unsupported(fmt::format("{} behind TemplateProcessing", type));
  before.by_template = is_template;
  if (is_template) return parse_template(node, spec);
  if (type == "RobertaProcessing") RETURN_IF_ERROR(parse_trimming(node, before, spec));
  before.by_bert = true;
  return parse_cls_and_sep(node, spec);
}

// ---- decoders

Result<DecoderSpec> parse_byte_level_decoder(const JsonNode& node) {
  std::vector<PreTokenizerSpec> specs;  // it is the pre-tokenizer's own description
  RETURN_IF_ERROR(parse_pretokenizer(node, specs));
  return ByteLevelDecoderSpec{};
}

Result<DecoderSpec> parse_metaspace_decoder(const JsonNode& node) {
  std::vector<PreTokenizerSpec> specs;  // it is the pre-tokenizer's own description
  RETURN_IF_ERROR(parse_pretokenizer(node, specs));
  const auto& metaspace = std::get<MetaspaceSpec>(specs.front());
  return MetaspaceDecoderSpec{metaspace.replacement, metaspace.prepend != PrependScheme::kNever};
}

Result<DecoderSpec> parse_ctc(const JsonNode& node) {
  CtcDecoderSpec spec;
  ASSIGN_OR_RETURN(spec.pad_token, node.text_at("pad_token"));
  ASSIGN_OR_RETURN(spec.word_delimiter_token, node.text_at("word_delimiter_token"));
  ASSIGN_OR_RETURN(spec.cleanup, node.bool_at("cleanup"));
  return spec;
}

Result<DecoderSpec> parse_strip_decoder(const JsonNode& node) {
  StripDecoderSpec spec;
  ASSIGN_OR_RETURN(const auto content, node.at("content"));
  ASSIGN_OR_RETURN(spec.content, content.character());
  ASSIGN_OR_RETURN(spec.start, node.count_at("start"));
  ASSIGN_OR_RETURN(spec.stop, node.count_at("stop"));
  return spec;
}

Result<DecoderSpec> parse_word_piece_decoder(const JsonNode& node) {
  WordPieceDecoderSpec spec;
  ASSIGN_OR_RETURN(spec.prefix, node.text_at("prefix"));
  ASSIGN_OR_RETURN(spec.cleanup, node.bool_at("cleanup"));
  return spec;
}

Result<DecoderSpec> parse_bpe_decoder(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto suffix, node.text_at("suffix"));
  return BpeDecoderSpec{std::string(suffix)};
}

Result<std::string_view> decoder_type(const JsonNode& node) {
  ASSIGN_OR_RETURN(const auto type, node.type());
  for (const std::string_view known : {"BPEDecoder", "ByteLevel", "WordPiece", "Metaspace", "CTC", "Sequence",
                                       "Replace", "Fuse", "Strip", "ByteFallback"})
    if (type == known) return type;
  if (node.has("suffix")) return "BPEDecoder";
  if (node.has("prefix") && node.has("cleanup")) return "WordPiece";
  if (node.has("pad_token") && node.has("word_delimiter_token") && node.has("cleanup")) return "CTC";
  if (node.has("pattern") && node.has("content")) return "Replace";
  if (node.has("content") && node.has("start") && node.has("stop")) return "Strip";
  return type;
}

Result<DecoderSpec> parse_one_decoder(const JsonNode& node, std::string_view type) {
  if (type == "ByteLevel") return parse_byte_level_decoder(node);
  if (type == "WordPiece") return parse_word_piece_decoder(node);
  if (type == "Metaspace") return parse_metaspace_decoder(node);
  if (type == "BPEDecoder") return parse_bpe_decoder(node);
  if (type == "CTC") return parse_ctc(node);
  if (type == "ByteFallback") return ByteFallbackDecoderSpec{};
  if (type == "Fuse") return FuseDecoderSpec{};
  if (type == "Strip") return parse_strip_decoder(node);
  if (type == "Replace") return parse_replace(node);
  return node.unsupported(type.empty() ? "a decoder of no known type" : type);
}

}  // namespace

Status parse_post_processor(const JsonNode& node, PostProcessorSpec& spec) {
  Processed before;
  return parse_one_post_processor(node, spec, before);
}

Status parse_decoder(const JsonNode& node, std::vector<DecoderSpec>& specs) {
  ASSIGN_OR_RETURN(const auto type, decoder_type(node));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const auto items, node.items_at("decoders"));
    for (const JsonNode& item : items) RETURN_IF_ERROR(parse_decoder(item, specs));
    return {};
  }
  ASSIGN_OR_RETURN(auto spec, parse_one_decoder(node, type));
  specs.push_back(std::move(spec));
  return {};
}

}  // namespace millrace::tokenizer
