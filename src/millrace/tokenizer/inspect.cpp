// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/inspect.h"

#include <algorithm>
#include <array>
#include <variant>

#include "millrace/tokenizer/pipeline.h"

namespace millrace::tokenizer {
namespace {

StepReport with_pattern(std::string component, const PatternSpec& spec) {
  StepReport step{.component = std::move(component), .pattern = spec.text};
  if (const auto pattern = Pattern::build(spec)) {
    step.engine = pattern->engine();
    step.is_linear = pattern->is_linear();
  }
  return step;
}

// Names as the file has them.
struct Describe {
  StepReport operator()(NormalForm form) const {
    switch (form) {
      case NormalForm::kNfc:
        return {.component = "NFC"};
      case NormalForm::kNfd:
        return {.component = "NFD"};
      case NormalForm::kNfkc:
        return {.component = "NFKC"};
      case NormalForm::kNfkd:
        break;
    }
    return {.component = "NFKD"};
  }
  StepReport operator()(const LowercaseSpec&) const { return {.component = "Lowercase"}; }
  StepReport operator()(const StripSpec&) const { return {.component = "Strip"}; }
  StepReport operator()(const StripAccentsSpec&) const { return {.component = "StripAccents"}; }
  StepReport operator()(const ReplaceSpec& spec) const { return with_pattern("Replace", spec.pattern); }
  StepReport operator()(const PrependSpec&) const { return {.component = "Prepend"}; }
  StepReport operator()(const PrecompiledSpec&) const { return {.component = "Precompiled"}; }
  StepReport operator()(const NmtSpec&) const { return {.component = "Nmt"}; }
  StepReport operator()(const ByteMapSpec&) const { return {.component = "ByteLevel"}; }
  StepReport operator()(const BertNormalizerSpec&) const { return {.component = "BertNormalizer"}; }

  StepReport operator()(const SplitSpec& spec) const { return with_pattern("Split", spec.pattern); }
  StepReport operator()(const CharacterSplitSpec& spec) const {
    constexpr std::array<const char*, 4> kNames = {"WhitespaceSplit", "Punctuation", "Digits", "CharDelimiterSplit"};
    return {.component = kNames[static_cast<size_t>(spec.kind)]};
  }
  StepReport operator()(const WordsSpec&) const { return {.component = "Whitespace"}; }
  StepReport operator()(const ByteLevelSpec& spec) const {
    if (!spec.use_regex) return {.component = "ByteLevel"};
    return with_pattern("ByteLevel", {std::string(kByteLevelPattern), true});
  }
  StepReport operator()(const MetaspaceSpec&) const { return {.component = "Metaspace"}; }
  StepReport operator()(const UnicodeScriptsSpec&) const { return {.component = "UnicodeScripts"}; }
  StepReport operator()(const FixedLengthSpec&) const { return {.component = "FixedLength"}; }
};

void add_steps(const char* part, const auto& specs, std::vector<StepReport>& steps) {
  for (const auto& spec : specs) {
    steps.push_back(std::visit(Describe{}, spec));
    steps.back().part = part;
  }
}

}  // namespace

Result<Inspection> Tokenizer::Impl::inspect(std::string_view json) {
  ASSIGN_OR_RETURN(const TokenizerSpec spec, parse_tokenizer_json(json));
  ASSIGN_OR_RETURN(const auto parts, build(json));
  constexpr std::array<const char*, 4> kModels = {"BPE", "Unigram", "WordPiece", "WordLevel"};
  Inspection found;
  found.model = kModels[spec.model.index()];
  if (const auto* bpe = std::get_if<BpeSpec>(&spec.model)) found.merges = std::ssize(bpe->merges);
  found.vocabulary = parts->model->vocabulary().size();
  found.id_limit = std::max(parts->model->vocabulary().id_limit(), parts->added_tokens.id_limit());
  found.added_tokens = std::ssize(spec.added_tokens);
  found.special_tokens = std::ranges::count_if(spec.added_tokens, &AddedTokenSpec::special);
  add_steps("normalizer", spec.normalizers, found.steps);
  add_steps("pre_tokenizer", spec.pretokenizers, found.steps);
  found.way = parts->byte_level ? "byte-level" : parts->units ? "units" : "general";
  found.why = parts->why_not_byte_level;
  return found;
}

Result<Inspection> Tokenizer::inspect(std::string_view json, std::string_view name) {
  return with_context(Impl::inspect(json), name);
}

}  // namespace millrace::tokenizer
