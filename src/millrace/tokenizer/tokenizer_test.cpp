// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/tokenizer.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/sync.h"
#include "millrace/tokenizer/testing.h"

// The golden ids and offsets were written by `tokenizers` 0.23.3 from the same files.

namespace millrace::tokenizer {

void PrintTo(const Offset& offset, std::ostream* out) {
  *out << "{" << offset.begin << ", " << offset.end << "}";
}

namespace {

using ::testing::ElementsAre;

std::shared_ptr<const Tokenizer> load(const Json& json) {
  auto tokenizer = Tokenizer::from_json(json.dump(), "test");
  EXPECT_TRUE(tokenizer) << (tokenizer ? "" : tokenizer.error().to_string());
  return tokenizer ? *tokenizer : nullptr;
}

struct Golden {
  std::string text;
  std::vector<uint32_t> ids;
  std::vector<Offset> offsets;
};

void expect_golden(const Json& json, const std::vector<Golden>& goldens) {
  const auto tokenizer = load(json);
  ASSERT_TRUE(tokenizer);
  Encoder encoder(tokenizer);
  for (int round = 0; round < 2; ++round) {  // the second finds every word in the cache
    for (const Golden& golden : goldens) {
      SCOPED_TRACE(golden.text);
      std::vector<uint32_t> ids, ids_alone;
      std::vector<Offset> offsets;
      ASSERT_TRUE(encoder.encode(golden.text, {}, ids, &offsets));
      ASSERT_TRUE(encoder.encode(golden.text, {}, ids_alone));
      EXPECT_EQ(ids, golden.ids);
      EXPECT_EQ(ids_alone, golden.ids);
      EXPECT_EQ(offsets, golden.offsets);
    }
  }
}

TEST(Tokenizer, Gpt2Golden) {
  expect_golden(
      small_tokenizer(byte_level()),
      {{"hello the world's  end",
        {274, 258, 271, 260, 32, 32, 101, 110, 100},
        {{0, 5}, {5, 9}, {9, 15}, {15, 17}, {17, 18}, {18, 19}, {19, 20}, {20, 21}, {21, 22}}},
       {"aaaaa é12345", {264, 97, 32, 266, 276, 52, 53}, {{0, 4}, {4, 5}, {5, 6}, {6, 8}, {8, 11}, {11, 12}, {12, 13}}},
       {" \n the", {32, 10, 258}, {{0, 1}, {1, 2}, {2, 6}}},
       {"", {}, {}},
       {"'S's", {39, 83, 260}, {{0, 1}, {1, 2}, {2, 4}}}});
}

TEST(Tokenizer, PrefixSpaceGolden) {
  Json json = small_tokenizer(byte_level(true));
  json["post_processor"] = byte_level(true);
  expect_golden(json, {{"hello", {32, 274}, {{0, 0}, {0, 5}}},
                       {"éa", {32, 266, 97}, {{0, 0}, {0, 2}, {2, 3}}},
                       {" the", {258}, {{0, 4}}},
                       {"\nx", {32, 10, 120}, {{0, 0}, {0, 1}, {1, 2}}}});
  json["post_processor"] = byte_level(false);
  expect_golden(json, {{"hello", {32, 274}, {{1, 1}, {0, 5}}},
                       {"éa", {32, 266, 97}, {{2, 2}, {0, 2}, {2, 3}}},
                       {" the", {258}, {{1, 4}}},
                       {"\nx", {32, 10, 120}, {{1, 1}, {0, 1}, {1, 2}}}});
}

TEST(Tokenizer, Llama3Golden) {
  Json json = small_tokenizer(split_by(kLlama3Pattern), {"world", "Ġend"});
  json["model"]["ignore_merges"] = true;
  const auto special = [](const char* id) { return Json{{"SpecialToken", {{"id", id}, {"type_id", 0}}}}; };
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json around = {{"type", "TemplateProcessing"},
                       {"single", {special("<s>"), text, special("</s>")}},
                       {"pair", Json::array()},
                       {"special_tokens",
                        {{"<s>", {{"id", "<s>"}, {"ids", {7, 8}}, {"tokens", {"a", "b"}}}},
                         {"</s>", {{"id", "</s>"}, {"ids", {9}}, {"tokens", {"c"}}}}}}};
  json["post_processor"] = {{"type", "Sequence"}, {"processors", {byte_level(), around}}};
  expect_golden(
      json,
      {{"the world end", {7, 8, 116, 257, 271, 278, 9}, {{0, 0}, {0, 0}, {0, 1}, {1, 3}, {4, 9}, {10, 13}, {0, 0}}},
       {"it'ſ 12345",
        {7, 8, 105, 116, 39, 197, 191, 32, 276, 52, 53, 9},
        {{0, 0}, {0, 0}, {0, 1}, {1, 2}, {2, 3}, {3, 5}, {3, 5}, {6, 6}, {6, 9}, {9, 10}, {10, 11}, {0, 0}}},
       {"a  b\n\n c",
        {7, 8, 97, 32, 32, 98, 10, 10, 32, 99, 9},
        {{0, 0}, {0, 0}, {0, 1}, {2, 2}, {3, 3}, {3, 4}, {4, 5}, {5, 6}, {7, 7}, {7, 8}, {0, 0}}}});
  Encoder encoder(load(json));
  std::vector<uint32_t> ids;
  ASSERT_TRUE(encoder.encode("the", {.add_special_tokens = false}, ids));
  EXPECT_THAT(ids, ElementsAre(116, 257));
}

Json with_added_tokens() {
  Json json = small_tokenizer(byte_level());
  json["post_processor"] = byte_level(false);
  json["added_tokens"] = {added_token(300, "<a>", "s"),   added_token(301, "<b>", "lrn"), added_token(302, "tok", "wn"),
                          added_token(303, "<a>x", "ln"), added_token(304, "\n\n", "r"),  added_token(5, "the", "n")};
  return json;
}

TEST(Tokenizer, AddedTokensGolden) {
  expect_golden(with_added_tokens(),
                {{"x<a>y", {120, 277, 121}, {{0, 1}, {1, 4}, {4, 5}}},
                 {"<a>x", {277, 120}, {{0, 3}, {3, 4}}},
                 {"x  <b> \t y <b><b>", {120, 278, 121, 278, 278}, {{0, 1}, {3, 6}, {9, 10}, {11, 14}, {14, 17}}},
                 {"tok atok tok! toké",
                  {279, 32, 97, 116, 111, 107, 32, 279, 33, 256, 111, 107, 266},
                  {{0, 3},
                   {4, 4},
                   {4, 5},
                   {5, 6},
                   {6, 7},
                   {7, 8},
                   {9, 9},
                   {9, 12},
                   {12, 13},
                   {14, 15},
                   {15, 16},
                   {16, 17},
                   {17, 19}}},
                 {"a\n\n \n\nb", {97, 281, 281, 98}, {{0, 1}, {6, 6}, {6, 6}, {6, 7}}},
                 {"the<a>the", {282, 277, 282}, {{0, 3}, {3, 6}, {6, 9}}},
                 {"\n\n\n\n\nx", {281, 281, 120}, {{5, 5}, {5, 5}, {5, 6}}}});
}

TEST(Tokenizer, BytesOutsideTheVocabularyVanish) {
  Json json = small_tokenizer(byte_level(true));
  json["post_processor"] = byte_level(true);
  for (const char* token : {"x", "Ċ", "Å"}) json["model"]["vocab"].erase(token);
  expect_golden(json, {{"axb xa", {32, 97, 98, 32, 97}, {{0, 0}, {0, 1}, {1, 2}, {4, 4}, {4, 5}}},
                       {"é\nx a\nbx", {32, 266, 32, 97, 98}, {{0, 0}, {0, 2}, {5, 5}, {5, 6}, {7, 8}}},
                       {"x", {32}, {{0, 0}}},
                       {"\nhe\n llo ſa",
                        {32, 257, 32, 272, 111, 32, 191, 97},
                        {{0, 0}, {1, 3}, {5, 5}, {5, 7}, {7, 8}, {9, 9}, {9, 11}, {9, 11}}}});
}

TEST(Tokenizer, NamesAndDecodesTokens) {
  const auto tokenizer = load(with_added_tokens());
  EXPECT_EQ(tokenizer->vocab_size(), 283);
  EXPECT_EQ(tokenizer->id_limit(), 283);
  EXPECT_EQ(tokenizer->token_to_id("Ġthe"), 258u);
  EXPECT_EQ(tokenizer->token_to_id("the"), 282u);
  EXPECT_EQ(tokenizer->token_to_id("<a>"), 277u);
  EXPECT_EQ(tokenizer->token_to_id("你"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(258), "Ġthe");
  EXPECT_EQ(tokenizer->id_to_token(277), "<a>");
  EXPECT_EQ(tokenizer->id_to_token(283), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(UINT32_MAX), std::nullopt);
  const std::vector<uint32_t> ids = {195, 169, 277, 258, 999, 278, 195};
  EXPECT_EQ(tokenizer->decode(ids).value(), "é the<b>\uFFFD");
  EXPECT_EQ(tokenizer->decode(ids, false).value(), "é<a> the<b>\uFFFD");
  EXPECT_EQ(tokenizer->hash(), xxh3_128(with_added_tokens().dump()));
}

TEST(Tokenizer, RefusesByNameWhatItDoesNotDo) {
  const Json good = small_tokenizer(byte_level());
  const auto refused = [&](const char* pointer, const Json& value, ErrorCode code, const std::string& message) {
    SCOPED_TRACE(fmt::format("{} = {}", pointer, value.dump()));
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    const auto tokenizer = Tokenizer::from_json(json.dump(), "f.json");
    ASSERT_FALSE(tokenizer);
    EXPECT_EQ(tokenizer.error().code(), code);
    EXPECT_THAT(tokenizer.error().to_string(), ::testing::StartsWith("f.json: "));
    EXPECT_THAT(tokenizer.error().to_string(), ::testing::HasSubstr(message));
  };
  constexpr auto kBad = ErrorCode::kInvalidArgument;
  constexpr auto kNot = ErrorCode::kUnsupported;
  refused("/version", "2.0", kNot, "2.0");
  refused("/normalizer", {{"type", "NFX"}}, kNot, "normalizer: NFX");
  refused("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAA"}}, kBad, "precompiled_charsmap");
  refused("/decoder/type", "Metaspice", kNot, "decoder: Metaspice");
  refused("/pre_tokenizer", {{"type", "Metaspace"}}, kBad, "\"replacement\" is missing");
  refused("/pre_tokenizer", {{"type", "Whitespaces"}}, kNot, "pre_tokenizer: Whitespaces");
  refused("/pre_tokenizer/add_prefix_space", 1, kBad, "pre_tokenizer.add_prefix_space: expected true or false");
  refused("/pre_tokenizer", split_by("("), kBad, "the regular expression (");
  refused("/pre_tokenizer", split_by(R"(\X)"), kNot, R"(\X in the regular expression)");
  refused("/post_processor", {{"type", "BertProcessing"}}, kBad, "\"cls\" is missing");
  refused("/model/type", "Trigram", kNot, "Trigram");
  refused("/model/dropout", 0.1, kNot, "dropout");
  refused("/model/vocab", Json::array(), kBad, "model.vocab: expected an object");
  refused("/model/vocab/a", -1, kBad, "\"a\" has no valid id");
  refused("/model/vocab/a", 98, kNot, "the id 98 for two tokens");
  refused("/model/vocab/a", 4000000000u, kNot, "the id 4000000000");
  refused("/model/merges", {"a b c"}, kBad, "model.merges[0]");
  refused("/model/merges", {"a a", Json::array({"a", "b"})}, kBad, "model.merges[1]");
  refused("/model/merges", {Json::array({"a"})}, kBad, "model.merges[0]");
  refused("/model/merges", {"a b"}, kBad, "model.merges[0]: \"a\", \"b\" or the two joined");
  refused("/added_tokens", {{{"content", "x"}}}, kBad, "added_tokens[0]: \"id\" is missing");
  EXPECT_TRUE(Tokenizer::from_json(good.dump(), "f.json"));
}

TEST(Tokenizer, UnknownTextWithoutAnUnknownTokenIsAnError) {
  Json json = small_tokenizer(byte_level());
  json["model"].erase("type");
  json["model"]["unk_token"] = "<unk>";  // never needed: every byte is a token
  std::vector<uint32_t> ids;
  ASSERT_TRUE(Encoder(load(json)).encode("x", {}, ids));
  json["model"]["vocab"].erase("x");
  const auto status = Encoder(load(json)).encode("x", {}, ids);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().to_string(), ::testing::HasSubstr("\"x\" is unknown, and so is the unk_token \"<unk>\""));
}

TEST(Tokenizer, EveryTruncationOfTheFileIsAnError) {
  const std::string json = with_added_tokens().dump();
  for (size_t size = 0; size < json.size(); size += 1 + size % 7)
    ASSERT_EQ(Tokenizer::from_json(std::string_view(json).substr(0, size), "cut").error().code(),
              ErrorCode::kInvalidArgument);
}

TEST(Tokenizer, AnyBytesAreSafeAndOffsetsStayInside) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  Json added = with_added_tokens();
  added["pre_tokenizer"] = split_by(kLlama3Pattern);
  Encoder encoders[] = {Encoder(load(with_added_tokens())), Encoder(load(added)),
                        Encoder(load(small_tokenizer(byte_level(true))))};
  const std::string likely = " \n\t'sax1<>\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x91\xF4\xFF\x80\xE3";
  for (int i = 0; i < 3000; ++i) {
    // Exactly as long as its content, so that a read past the end is seen by a sanitizer.
    std::vector<char> text(random() % 70);
    for (char& c : text) c = random() % 4 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    for (Encoder& encoder : encoders) {
      std::vector<uint32_t> ids;
      std::vector<Offset> offsets;
      ASSERT_TRUE(encoder.encode({text.data(), text.size()}, {}, ids, &offsets));
      ASSERT_EQ(ids.size(), offsets.size());
      for (const Offset& offset : offsets) {
        ASSERT_GE(offset.begin, 0);
        ASSERT_LE(offset.begin, offset.end);
        ASSERT_LE(offset.end, static_cast<int64_t>(text.size()));
      }
    }
  }
}

TEST(Tokenizer, LongWordsAreFast) {
  std::mt19937 random(1);
  std::string text(300000, ' ');
  for (char& c : text) c = "aaheld wor"[random() % 10];
  Encoder encoder(load(small_tokenizer(byte_level(false, false))));
  std::vector<uint32_t> ids;
  ASSERT_TRUE(encoder.encode(text, {}, ids));  // quadratic work would take minutes
  EXPECT_GT(ids.size(), 50000u);
}

TEST(Tokenizer, ThreadsShareATokenizer) {
  const auto tokenizer = load(with_added_tokens());
  std::vector<std::vector<uint32_t>> results(4);
  std::vector<Thread> threads;
  for (auto& ids : results)
    threads.emplace_back("encode", [&] {
      Encoder encoder(tokenizer);
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(encoder.encode("hello the <a> world's tok 12345\n\n", {}, ids));
    });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : results) EXPECT_EQ(ids, results[0]);
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

TEST(Tokenizer, RealFilesRoundTripRealText) {
  const char* data = std::getenv("MILLRACE_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "MILLRACE_TEST_DATA is not set";
  for (const char* name : {"gpt2", "llama3.2"}) {
    const auto tokenizer =
        Tokenizer::from_json(read_file(std::filesystem::path(data) / "tokenizers" / name / "tokenizer.json"), name);
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    Encoder encoder(*tokenizer);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(std::filesystem::path(data) / "text")) {
      if (entry.path().extension() != ".txt") continue;
      SCOPED_TRACE(entry.path().string());
      std::string text;
      append_utf8_replaced(read_file(entry.path()).substr(0, 200000), text);
      std::vector<uint32_t> ids;
      ASSERT_TRUE(encoder.encode(text, {.add_special_tokens = false}, ids));
      EXPECT_EQ((*tokenizer)->decode(ids, false).value(), text);
    }
  }
}

}  // namespace
}  // namespace millrace::tokenizer
