// SPDX-License-Identifier: Apache-2.0
// Every component with bytes of any kind: what the sanitizers see. That the answers are right is for the tests against
// the `tokenizers` package (tests/python/test_tokenizer_zoo.py).
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/testing.h"
#include "millrace/tokenizer/text/normal_forms.h"
#include "millrace/tokenizer/text/precompiled.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/words/pattern.h"

namespace millrace::tokenizer {
namespace {

using ::testing::ElementsAre;

Json kind(const char* type, Json fields = Json::object()) {
  fields["type"] = type;
  return fields;
}

Json pattern_split(const char* pattern, const char* behavior, bool invert) {
  return kind("Split", {{"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}});
}

std::vector<Json> normalizers() {
  const Json bert = kind(
      "Bert", {{"clean_text", true}, {"handle_chinese_chars", true}, {"strip_accents", nullptr}, {"lowercase", true}});
  return {nullptr,
          kind("NFC"),
          kind("NFKD"),
          kind("Nmt"),
          kind("StripAccents"),
          kind("ByteLevel"),
          kind("Strip", {{"strip_left", true}, {"strip_right", true}}),
          kind("Replace", {{"pattern", {{"Regex", "\\p{L}|$"}}}, {"content", "é"}}),
          kind("Prepend", {{"prepend", "▁"}}),
          bert};
}

std::vector<Json> pre_tokenizers() {
  return {nullptr,
          byte_level(true),
          kind("Metaspace", {{"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}}),
          kind("Whitespace"),
          kind("BertPreTokenizer"),
          kind("UnicodeScripts"),
          kind("Digits", {{"individual_digits", true}}),
          kind("FixedLength", {{"length", 3}}),
          pattern_split("a*|\\b", "MergedWithPrevious", false),
          pattern_split("[^\\s\\p{Lu}]+", "MergedWithNext", true),
          pattern_split("\\s", "Contiguous", false)};
}

std::vector<Json> models() {
  Json bpe = small_tokenizer(nullptr)["model"];
  bpe["vocab"]["<0xE4>"] = bpe["vocab"].size();
  bpe["unk_token"] = "a";
  bpe["byte_fallback"] = true;
  Json affixed = small_tokenizer(nullptr)["model"];
  affixed["end_of_word_suffix"] = "</w>";
  affixed["unk_token"] = "a";
  const Json unigram = Json::parse(
      R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5], ["aa", -2.25], ["é", -3], ["▁", -2e0]]})");
  const Json pieces = kind("WordPiece", {{"vocab", {{"[UNK]", 0}, {"a", 1}, {"##é", 2}, {"##a", 3}}},
                                         {"unk_token", "[UNK]"},
                                         {"continuing_subword_prefix", "##"},
                                         {"max_input_chars_per_word", 10}});
  return {bpe, affixed, unigram, pieces, kind("WordLevel", {{"vocab", {{"a", 0}}}, {"unk_token", "a"}})};
}

std::string random_bytes(std::mt19937_64& random, size_t limit) {
  const std::string likely = " \n\t'sax1<>\xC3\xA9\xE4\xBD\xA0\xCC\x81\xF0\x9F\x91\xF4\xFF\x80\xE3";
  std::string text(random() % limit, ' ');
  for (char& c : text) c = random() % 4 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
  return text;
}

TEST(Components, AnyBytesAreSafe) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (const Json& normalizer : normalizers()) {
    for (const Json& pre_tokenizer : pre_tokenizers()) {
      Json json = small_tokenizer(pre_tokenizer);
      json["normalizer"] = normalizer;
      json["model"] = models()[random() % models().size()];
      json["post_processor"] = byte_level(false);
      json["added_tokens"] = {added_token(300, "<a>", "slr"), added_token(301, "x", "nwlr")};
      SCOPED_TRACE(json["normalizer"].dump() + json["pre_tokenizer"].dump() + json["model"]["type"].dump());
      const auto tokenizer = Tokenizer::from_json(json.dump(), "test");
      ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
      Encoder encoder(*tokenizer);
      for (int i = 0; i < 40; ++i) {
        const std::string drawn = random_bytes(random, 60);
        const std::vector<char> text(drawn.begin(), drawn.end());  // a read past its end is seen by a sanitizer
        std::vector<uint32_t> ids, again;
        std::vector<Offset> offsets;
        // An error of the regular expression engine is possible for what is no UTF-8.
        if (!encoder.encode({text.data(), text.size()}, {}, ids, &offsets)) continue;
        ASSERT_EQ(ids.size(), offsets.size());
        ASSERT_TRUE(encoder.encode({text.data(), text.size()}, {}, again));
        // The ids of other bytes are unspecified.
        if (is_utf8(drawn)) {
          ASSERT_EQ(ids, again);
        }
        ASSERT_TRUE((*tokenizer)->decode(ids));
      }
    }
  }
}

TEST(PrecompiledMap, DamageIsAnErrorOrHarmless) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 80, ' ');
    for (char& b : bytes) b = static_cast<char>(random() % (random() % 2 == 0 ? 256 : 3));
    if (bytes.size() > 4) bytes.replace(0, 4, {static_cast<char>(random() % bytes.size()), 0, 0, 0});
    const auto map = PrecompiledMap::parse(bytes);
    if (!map) {
      EXPECT_EQ(map.error().code(), ErrorCode::kInvalidArgument);
      continue;
    }
    std::vector<NormalizedChar> chars;
    map->normalize(random_bytes(random, 30), chars);
  }
}

TEST(Base64, DecodesAndRefuses) {
  EXPECT_EQ(decode_base64("").value(), "");
  EXPECT_EQ(decode_base64("TWk=").value(), "Mi");
  EXPECT_EQ(decode_base64("TWlsbA==").value(), "Mill");
  for (const char* bad : {"T", "TWl", "TW=l", "TWlsb===", "T!ls", "TWl="}) EXPECT_FALSE(decode_base64(bad)) << bad;
}

TEST(NormalForms, KnowMarksHangulAndCompatibility) {
  const auto normalized = [](NormalForm form, std::string_view text) {
    std::vector<NormalizedChar> chars;
    normalize(form, text, chars);
    std::vector<std::pair<uint32_t, int>> result;
    for (const NormalizedChar& c : chars) result.emplace_back(c.c, c.change);
    return result;
  };
  using P = std::pair<uint32_t, int>;
  EXPECT_THAT(normalized(NormalForm::kNfd, "é"), ElementsAre(P{'e', 0}, P{0x301, 1}));
  EXPECT_THAT(normalized(NormalForm::kNfc, "e\u0301"), ElementsAre(P{0xE9, -1}));
  EXPECT_THAT(normalized(NormalForm::kNfc, "é"), ElementsAre(P{0xE9, 0}));
  EXPECT_THAT(normalized(NormalForm::kNfd, "q\u0307\u0323"), ElementsAre(P{'q', 0}, P{0x323, 0}, P{0x307, 0}));
  EXPECT_THAT(normalized(NormalForm::kNfc, "\u1100\u1161\u11A8"), ElementsAre(P{0xAC01, -2}));
  EXPECT_THAT(normalized(NormalForm::kNfd, "\uAC01"), ElementsAre(P{0x1100, 0}, P{0x1161, 1}, P{0x11A8, 1}));
  EXPECT_THAT(normalized(NormalForm::kNfkc, "ﬁ"), ElementsAre(P{'f', 0}, P{'i', 1}));
  EXPECT_THAT(normalized(NormalForm::kNfc, "\u0958"), ElementsAre(P{0x915, 0}, P{0x93C, 1}));  // not composed again
}

TEST(Pattern, WritesClassesOut) {
  const auto ranges = expand_classes("\\s");
  ASSERT_TRUE(ranges);
  EXPECT_THAT(ranges->text, ::testing::StartsWith("[\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}"));
  EXPECT_EQ(expand_classes("a\\\\p[^b]\\n").value().text, "a\\\\p[^b]\\n");
  EXPECT_THAT(expand_classes("[^\\D]").value().text, ::testing::StartsWith("[^\\x{0}-\\x{2F}\\x{3A}-\\x{7F}\\x{80}"));
  for (const char* bad : {"\\p{Klingon}", "\\pL", "[[:alpha:]]", "\\X"}) EXPECT_FALSE(expand_classes(bad)) << bad;
}

TEST(Pattern, FollowsGroupsAndOptions) {
  EXPECT_THAT(expand_classes("(?i)\\d").value().text, ::testing::StartsWith("(?i)(?-i:[\\x{30}"));
  EXPECT_THAT(expand_classes("(?i:a)\\d").value().text, ::testing::StartsWith("(?i:a)[\\x{30}"));
  for (const char* same : {"(?W)\\w\\b(?D:\\d)", "(?#\\w[)a", "(?x)# \\w (?i)\n\\u00e9", "\\c[\\\\d"})
    EXPECT_EQ(expand_classes(same).value().text, same);
  EXPECT_EQ(expand_classes("(?i)[]\\n]a(?-i:[b])").value().folded_sets, std::vector<std::string>{"[]\\n]"});
  EXPECT_EQ(expand_classes("[^a[^b]]").value().negated_sets, std::vector<std::string>{"[^b]"});
  for (const char* bad : {"(?i)\\1", "(?<=(a|\\b))", "(?<!\\R)", "(?P)a", "(?(a)b)", "(?{})", "(?i)\\x{10D50}"})
    EXPECT_FALSE(expand_classes(bad)) << bad;
  EXPECT_TRUE(expand_classes("(?<=a)\\b(?<!(?i)a)\\1"));
}

}  // namespace
}  // namespace millrace::tokenizer
