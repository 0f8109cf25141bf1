// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/file/tiktoken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {
namespace {

using ::testing::HasSubstr;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string line(std::string_view token, uint32_t rank) {
  return base64(token) + " " + std::to_string(rank) + "\n";
}

// All bytes, then `more`.
std::string file_of(const std::vector<std::string>& more) {
  std::string file;
  for (uint32_t byte = 0; byte < 256; ++byte) file += line(std::string(1, static_cast<char>(byte)), byte);
  for (uint32_t i = 0; i < more.size(); ++i) file += line(more[i], 256 + i);
  return file;
}

std::string error_of(const std::string& file, const TiktokenFacts& facts = {"\\S+|\\s+", {}}) {
  const auto json = tokenizer_json_of(file, facts, "a.tiktoken");
  return json ? "good" : json.error().to_string();
}

// The ids of one word as tiktoken computes them: the pair whose bytes have the least rank merges, the first of equals.
std::vector<uint32_t> slow_ids(const std::map<std::string, uint32_t>& ranks, const std::string& word) {
  if (ranks.contains(word)) return {ranks.at(word)};
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best = 0;
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found != ranks.end() && found->second < least) std::tie(best, least) = std::pair(i, found->second);
    }
    if (least == UINT32_MAX) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<uint32_t> ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part));
  return ids;
}

TEST(Tiktoken, GivesTheIdsOfItsRanks) {
  std::mt19937_64 random(20261127);
  for (int round = 0; round < 30; ++round) {
    // Tokens that are two others, as training makes them, over few letters, so that many pairs give the same bytes.
    std::map<std::string, uint32_t> ranks;
    std::vector<std::string> tokens, more;
    for (int byte = 0; byte < 256; ++byte) ranks[std::string(1, static_cast<char>(byte))] = static_cast<uint32_t>(byte);
    for (const char c : {'a', 'b', 'c'}) tokens.emplace_back(1, c);
    while (more.size() < 60) {
      const std::string token = tokens[random() % tokens.size()] + tokens[random() % tokens.size()];
      if (token.size() > 12 || !ranks.emplace(token, 256 + more.size()).second) continue;
      tokens.push_back(token);
      more.push_back(token);
    }
    const auto json = tokenizer_json_of(file_of(more), {"[a-c]+|\\s+", {{"<|end|>", 1000}}}, "a");
    ASSERT_TRUE(json) << json.error().to_string();
    const auto tokenizer = Tokenizer::from_json(*json, "a");
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    EXPECT_EQ((*tokenizer)->id_limit(), 1001);
    Encoder encoder(*tokenizer);
    for (int i = 0; i < 200; ++i) {
      std::string word;
      for (auto n = 1 + random() % 25; n > 0; --n) word += static_cast<char>('a' + random() % 3);
      std::vector<uint32_t> ids;
      ASSERT_TRUE(encoder.encode(word, {}, ids));
      EXPECT_EQ(ids, slow_ids(ranks, word)) << word << " in round " << round;
    }
    std::vector<uint32_t> ids;
    ASSERT_TRUE(encoder.encode("a<|end|>", {}, ids));
    EXPECT_EQ(ids, (std::vector<uint32_t>{'a', 1000}));
    EXPECT_EQ(*(*tokenizer)->decode(ids, false), "a<|end|>");
  }
}

TEST(Tiktoken, SaysWhatIsWrong) {
  EXPECT_EQ(error_of(file_of({"ab", "abc"})), "good");
  EXPECT_THAT(error_of(file_of({}) + "no rank\n"), HasSubstr("a.tiktoken: line 257: expected a token in base64"));
  EXPECT_THAT(error_of(file_of({}) + "YWI= 1x\n"), HasSubstr("line 257"));
  EXPECT_THAT(error_of(file_of({}) + "= 256\n"), HasSubstr("line 257"));
  EXPECT_THAT(error_of(file_of({"ab", "ab"})), HasSubstr("rank 257 comes twice"));
  EXPECT_THAT(error_of(file_of({}) + line("ab", 7)), HasSubstr("two tokens have the rank 7"));
  EXPECT_THAT(error_of(line("ab", 0)), HasSubstr("the byte 0x00 has no token"));
  EXPECT_THAT(error_of(file_of({}), {"x", {{"<|a|>", 7}}}), HasSubstr("<|a|> has the id 7 of another token"));
  EXPECT_THAT(error_of(file_of({}), {"x", {{"<|a|>", 300}, {"<|b|>", 300}}}), HasSubstr("<|b|> has the id 300"));
  EXPECT_THAT(error_of(file_of({}), {"\\p{N}{1,3}+|.", {}}), HasSubstr("such as {1,3}+"));
  EXPECT_EQ(error_of(file_of({}), {"\\p{N}{1,3}|\\p{L}+|\\x{41}+|.", {}}), "good");
  EXPECT_TRUE(is_tiktoken(file_of({})));
  for (const char* other : {"", "{\"version\": \"1.0\"}", "{}\n", "hello 7\n\n", "YWI=", "ab cd 3\n"}) {
    EXPECT_FALSE(is_tiktoken(other)) << other;
  }
}

TEST(Tiktoken, FindsThePatternOfAProgram) {
  EXPECT_EQ(pattern_in_python("class T:\n    pat_str = r\"\"\"a|b's|\"\\d+\"\"\"\n"), "a|b's|\"\\d+");
  EXPECT_EQ(pattern_in_python("pat_str = '[a-z]+'"), "[a-z]+");
  EXPECT_EQ(
      pattern_in_python("pat_str: x\n  pat_str = \"|\".join(\n  [\n   r\"\"\"\\p{Han}+\"\"\",\n   r'b',\n  ]\n )"),
      "\\p{Han}+|b");
  EXPECT_EQ(pattern_in_python("    pat_str = \"|\".join([r\"\"\"a\"\"\", r\"\"\"\\s+\"\"\"])"), "a|\\s+");
  EXPECT_EQ(pattern_in_python("x = pat_str\n"), std::nullopt);
  EXPECT_EQ(pattern_in_python("pat_str = make()\n"), std::nullopt);
  EXPECT_EQ(pattern_in_python("pat_str = \"\\\\s\"\n"), std::nullopt);  // an escape that would have to be read
  EXPECT_EQ(pattern_in_python("pat_str = r\"\"\"never ends"), std::nullopt);
  EXPECT_EQ(pattern_in_python("pat_str = \"|\".join([r'a', f(b)])"), std::nullopt);
}

// Shards name a tokenizer by the hash of this text, so it may never change for the same file.
TEST(Tiktoken, TheTextOfAFileStays) {
  const auto json = tokenizer_json_of(file_of({"ab", "\"\\"}), {"a\"\\d\n", {{"<|\"|>", 300}}}, "a");
  ASSERT_TRUE(json);
  const auto tokenizer = Tokenizer::from_json(*tokenizer_json_of(file_of({"ab"}), {"\\S+", {}}, "a"), "a");
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(to_hex((*tokenizer)->hash()), "cbbe2a2fd7149ab44f2074d97878d8ff");
}

}  // namespace
}  // namespace millrace::tokenizer
