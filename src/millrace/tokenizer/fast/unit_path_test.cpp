// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/unit_path.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/testing.h"
#include "millrace/tokenizer/text/normal_forms.h"
#include "millrace/tokenizer/text/unicode_tables.h"

// That units give the ids of the whole text is tested in tests/python/test_tokenizer_units.py; here is what their rules
// say of Unicode, and where a few texts are cut.

namespace millrace::tokenizer {
namespace {

std::u32string normalized(NormalForm form, const std::u32string& text) {
  std::string bytes;
  for (const char32_t c : text) append_utf8(c, bytes);
  std::vector<NormalizedChar> chars;
  normalize(form, bytes, chars);
  std::u32string result;
  for (const NormalizedChar& c : chars) result += static_cast<char32_t>(c.c);
  return result;
}

TEST(UnitPath, NoCharacterComposesWithAsciiBehindItNorALetterBehindAscii) {
  for (char32_t c = 0x80; c < 0x10000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    for (const NormalForm form : kNormalForms) {
      const std::u32string character(1, c), alone = normalized(form, character);
      for (const char32_t ascii : std::u32string(U" =.a")) {
        EXPECT_EQ(normalized(form, character + ascii), alone + ascii) << static_cast<uint32_t>(c);
        if (!is_lone_letter(c)) continue;
        EXPECT_EQ(normalized(form, ascii + character), ascii + alone) << static_cast<uint32_t>(c);
      }
    }
  }
}

TEST(UnitPath, NoLetterBecomesAPrependedMark) {
  for (uint32_t c = 0x80; c < 0x10000; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || !is_lone_letter(c)) continue;
    std::u32string texts(1, c);
    uint32_t lower[3];
    const int count = to_lower(c, lower);
    texts += static_cast<char32_t>(lower[count - 1]);
    for (const NormalForm form : kNormalForms) texts += normalized(form, std::u32string(1, c)).back();
    for (const char32_t last : texts) EXPECT_FALSE(prepends_cluster(last)) << c;
  }
}

TEST(UnitPath, WhatBeginsAClusterIsWhereTheScannerLooks) {
  for (uint32_t c = 0x10000; c < 0x110000; ++c) {
    if (c >= UnitScanner::kIndicBegin && c < UnitScanner::kIndicEnd) continue;
    ASSERT_FALSE(prepends_cluster(c)) << c;
  }
  for (uint32_t c = 0; c < 0x80; ++c) {
    const bool control = c < 0x20 || c == 0x7F;
    ASSERT_EQ(cluster_class(c), control ? ClusterClass::kControl : ClusterClass::kOther) << c;
  }
}

// The units of `text`, with | before each.
std::string units(const Json& json, std::string_view text) {
  const std::string content = json.dump();
  const auto spec = parse_tokenizer_json(content);
  EXPECT_TRUE(spec);
  const auto model = make_model(spec->model);
  const auto path = UnitPath::build(*spec, **model);
  if (!path) return "none";
  std::string result;
  std::array<CachedWords::Bounds, 3> places;
  size_t begin = 0;
  while (const size_t count = path->scanner.next_units(text, begin, places)) {
    for (size_t i = 0; i < count; ++i)
      result.append("|").append(text.substr(places[i].begin, places[i].end - places[i].begin));
    begin = places[count - 1].end;
  }
  return result;
}

Json words_file(const Json& normalizer, const Json& pretokenizer) {
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", normalizer},
          {"pre_tokenizer", pretokenizer},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "a"}}}};
}

TEST(UnitPath, WordsAreUnits) {
  const Json bert = {{"type", "BertNormalizer"},
                     {"clean_text", true},
                     {"handle_chinese_chars", true},
                     {"strip_accents", nullptr},
                     {"lowercase", true}};
  const Json nfc = {{"type", "NFC"}};
  const Json pieces = {{"type", "BertPreTokenizer"}}, white = {{"type", "WhitespaceSplit"}};
  const std::string text = " It's\t\né,中a.\u0338 x";
  EXPECT_EQ(units(words_file(bert, pieces), text), "|It|'|s|é|,|中|a|.|\u0338|x");
  EXPECT_EQ(units(words_file(nfc, pieces), text), "|It'|s|é,中a.\u0338|x");
  EXPECT_EQ(units(words_file(nullptr, white), text), "|It's|é,中a.\u0338|x");
  EXPECT_EQ(units(words_file(nullptr, {{"type", "Digits"}, {"individual_digits", true}}), text), "none");
  EXPECT_EQ(units(words_file({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}, white), text), "none");
}

TEST(UnitPath, MergesSayWhatIsAUnit) {
  Json json = words_file(nullptr, {{"type", "Metaspace"}, {"replacement", "▁"}, {"split", false}});
  Json& model = json["model"];
  model = {{"type", "BPE"}, {"unk_token", "?"}, {"merges", {"a b", "▁ a", "ab 你", "é a"}}};
  for (const char* token : {"?", "▁", "a", "b", "你", "é", ",", "ab", "▁a", "ab你", "éa", "好"})
    model["vocab"][token] = model["vocab"].size();
  EXPECT_EQ(units(json, "ab a,,b你éa 好a  é"), "|ab| a|,,|b你|éa| 好|a|  é");
  model["vocab"]["b▁"] = model["vocab"].size();
  model["merges"].push_back("b ▁");
  EXPECT_EQ(units(json, "ab ab,a b"), "|ab ab|,|a| b");
  model["ignore_merges"] = true;
  EXPECT_EQ(units(json, "ab"), "none");
}

}  // namespace
}  // namespace millrace::tokenizer
