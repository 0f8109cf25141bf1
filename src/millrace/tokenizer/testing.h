// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test helpers of this folder: a small handmade tokenizer.json, and the seed of random tests.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/base/testing.h"
#include "millrace/tokenizer/text/byte_map.h"
#include "millrace/tokenizer/text/normal_forms.h"

namespace millrace::tokenizer {

using Json = nlohmann::json;

inline constexpr NormalForm kNormalForms[] = {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd};

inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline constexpr const char* kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline Json byte_level(bool add_prefix_space = false, bool use_regex = true, bool trim_offsets = true) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

inline Json split_by(const char* pattern) {
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false, false)}}};
}

// `flags`: w single_word, l lstrip, r rstrip, n normalized, s special.
inline Json added_token(uint32_t id, const std::string& content, const std::string& flags) {
  const auto has = [&](char flag) { return flags.find(flag) != std::string::npos; };
  return {{"id", id},           {"content", content},     {"single_word", has('w')}, {"lstrip", has('l')},
          {"rstrip", has('r')}, {"normalized", has('n')}, {"special", has('s')}};
}

// Returns a tokenizer in which every byte is the token with its own number. Merged tokens follow from 256 on, then
// `extra`.
inline Json small_tokenizer(const Json& pretokenizer, const std::vector<std::string>& extra = {}) {
  const std::vector<std::string> merges = {"Ġ t", "h e",     "Ġt he", "i n",   "' s",    "Ġ Ġ", "ĠĠ ĠĠ",
                                           "a a", "aa aa",   "r e",   "Ã ©",   "Ġ w",    "o r", "Ġw or",
                                           "l d", "Ġwor ld", "l l",   "he ll", "hell o", "1 2", "12 3"};
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) {
    std::string spelled;
    append_spelling_of(std::string(1, static_cast<char>(b)), spelled);
    vocab[spelled] = b;
  }
  for (std::string merge : merges) vocab[merge.erase(merge.find(' '), 1)] = vocab.size();
  for (const std::string& token : extra) vocab[token] = vocab.size();
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", pretokenizer},
          {"post_processor", nullptr},
          {"decoder", byte_level()},
          {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocab}, {"merges", merges}}}};
}

}  // namespace millrace::tokenizer
