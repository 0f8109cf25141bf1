// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a tokenizer.json into plain structs. These files know JSON and the existing components. They refuse, by name,
// components that this version does not support, and build nothing. A Sequence is flattened into the list that
// contains it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "millrace/base/memory/huge_array.h"
#include "millrace/base/status.h"
#include "millrace/tokenizer/text/normal_forms.h"

namespace millrace::tokenizer {

struct AddedTokenSpec {
  std::string content;
  uint32_t id = 0;  // as in the file; `tokenizers` numbers them anew (see added_tokens.h)
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// The pattern of Split and Replace: plain characters, or a regular expression (in Oniguruma's own syntax).
struct PatternSpec {
  std::string text;
  bool is_regex = false;
};

// ---- normalizers

struct LowercaseSpec {};
struct StripSpec {
  bool left = false, right = false;
};
struct StripAccentsSpec {};
struct ReplaceSpec {
  PatternSpec pattern;
  std::string content;
};
struct PrependSpec {
  std::string text;
};
struct PrecompiledSpec {
  std::string map;  // as SentencePiece wrote it
};
struct NmtSpec {};
struct ByteMapSpec {};  // each byte becomes its character (byte_map.h)
struct BertNormalizerSpec {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};
using NormalizerSpec = std::variant<NormalForm, LowercaseSpec, StripSpec, StripAccentsSpec, ReplaceSpec, PrependSpec,
                                    PrecompiledSpec, NmtSpec, ByteMapSpec, BertNormalizerSpec>;

// ---- pre-tokenizers

// The fate of a match: it is removed, is a word by itself, joins the text before or after it, or joins other matches
// that touch it.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitSpec {
  PatternSpec pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the text between the matches counts as matched
};
enum class CharacterKind { kWhiteSpace, kPunctuation, kNumeric, kOne };
struct CharacterSplitSpec {
  CharacterKind kind = CharacterKind::kWhiteSpace;
  SplitBehavior behavior = SplitBehavior::kRemoved;
  uint32_t character = 0;  // with kOne
};
struct WordsSpec {};  // Whitespace: keeps the matches of \w+|[^\w\s]+
struct ByteLevelSpec {
  bool add_prefix_space = false;
  bool use_regex = true;  // cut by GPT-2's expression before the bytes become characters
};
enum class PrependScheme { kAlways, kFirst, kNever };
struct MetaspaceSpec {
  std::string replacement;
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};
struct UnicodeScriptsSpec {};
struct FixedLengthSpec {
  uint64_t length = 5;  // characters
};
using PreTokenizerSpec = std::variant<SplitSpec, CharacterSplitSpec, WordsSpec, ByteLevelSpec, MetaspaceSpec,
                                      UnicodeScriptsSpec, FixedLengthSpec>;

// ---- models

using VocabularySpec = HugeVector<std::pair<std::string_view, uint32_t>>;
using MergesSpec = HugeVector<std::pair<std::string_view, std::string_view>>;  // by rank

struct BpeSpec {
  VocabularySpec vocab;
  MergesSpec merges;
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};
struct UnigramSpec {
  std::vector<std::pair<std::string_view, double>> vocab;  // token, log probability; the index is the id
  std::optional<uint32_t> unk_id;
  bool byte_fallback = false;
};
struct WordPieceSpec {
  VocabularySpec vocab;
  std::string unk_token;
  std::string continuing_subword_prefix;
  uint64_t max_input_chars_per_word = 100;
};
struct WordLevelSpec {
  VocabularySpec vocab;
  std::string unk_token;
};
using ModelSpec = std::variant<BpeSpec, UnigramSpec, WordPieceSpec, WordLevelSpec>;

// ---- post-processor and decoder

struct PostProcessorSpec {
  struct Trim {
    bool add_prefix_space = false;
    bool behind_added = false;  // a Bert or Roberta processor put a token before the text's first one
  };
  std::vector<Trim> trims;       // trimmings of offsets, in order
  std::vector<uint32_t> before;  // ids around the text when special tokens are asked for
  std::vector<uint32_t> after;
};

struct ByteLevelDecoderSpec {};
struct WordPieceDecoderSpec {
  std::string prefix;
  bool cleanup = true;
};
struct MetaspaceDecoderSpec {
  std::string replacement;
  bool drop_first = true;  // replace those of the first token by nothing instead of a space
};
struct BpeDecoderSpec {
  std::string suffix;
};
struct CtcDecoderSpec {
  std::string pad_token, word_delimiter_token;
  bool cleanup = true;
};
struct ByteFallbackDecoderSpec {};
struct FuseDecoderSpec {};
struct StripDecoderSpec {
  uint32_t content = 0;
  uint64_t start = 0, stop = 0;  // how many may be removed at each end of a token
};
using DecoderSpec =
    std::variant<ByteLevelDecoderSpec, WordPieceDecoderSpec, MetaspaceDecoderSpec, BpeDecoderSpec, CtcDecoderSpec,
                 ByteFallbackDecoderSpec, FuseDecoderSpec, StripDecoderSpec, ReplaceSpec>;

struct TokenizerSpec {
  std::vector<AddedTokenSpec> added_tokens;
  std::vector<NormalizerSpec> normalizers;
  std::vector<PreTokenizerSpec> pretokenizers;
  ModelSpec model;
  PostProcessorSpec post_processor;
  std::optional<std::vector<DecoderSpec>> decoders;  // nullopt: tokens are joined with spaces
  std::shared_ptr<const void> storage;               // owns the text of string_views that do not point into the file
};

// Parses a tokenizer.json. `json` must outlive the result. Errors: invalid_argument (not JSON, a field missing or of a
// wrong type; the place), unsupported (the component's name).
[[nodiscard]] Result<TokenizerSpec> parse_tokenizer_json(std::string_view json);

// The parts of the parser, each in a separate file.
struct JsonNode;
struct LongLists;  // tokenizer_json_lists.h
[[nodiscard]] Status parse_normalizer(const JsonNode& node, std::vector<NormalizerSpec>& specs);
[[nodiscard]] Status parse_pretokenizer(const JsonNode& node, std::vector<PreTokenizerSpec>& specs);
// Moves the vocabulary and merges that the node lacks out of `lists`, unless it is nullptr.
[[nodiscard]] Result<ModelSpec> parse_model(const JsonNode& node, std::string_view json, LongLists* lists);
[[nodiscard]] Status parse_decoder(const JsonNode& node, std::vector<DecoderSpec>& specs);
[[nodiscard]] Result<PatternSpec> parse_pattern(const JsonNode& node);
[[nodiscard]] Result<ReplaceSpec> parse_replace(const JsonNode& node);
[[nodiscard]] Result<std::vector<AddedTokenSpec>> parse_added_tokens(const JsonNode& node);
[[nodiscard]] Status parse_post_processor(const JsonNode& node, PostProcessorSpec& spec);

}  // namespace millrace::tokenizer
