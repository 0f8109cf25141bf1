// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/storage/url.h"

namespace millrace::prepare {
namespace {

using ::testing::HasSubstr;

// 256 bytes as tokens, and "ab".
std::string ranks() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    file += kDigits[byte >> 2];
    file += kDigits[(byte & 3) << 4];
    file += "== " + std::to_string(byte) + "\n";
  }
  return file + "YWI= 256\n";
}

// The ids of "ab<|end|>", or the error, with these files in a folder.
std::string ids_of(const std::string& name, const std::map<std::string, std::string>& files) {
  static int folders = 0;
  const std::string folder = "mem://tokenizer-file/" + std::to_string(++folders);
  for (const auto& [file, text] : files) {
    const auto at = open_url(folder + "/" + file);
    EXPECT_TRUE(at && write_object(*at->storage, at->key, text));
  }
  const auto tokenizer = load_tokenizer(folder + "/" + name);
  if (!tokenizer) return tokenizer.error().to_string();
  std::vector<uint32_t> ids;
  EXPECT_TRUE(tokenizer::Encoder(*tokenizer).encode("ab<|end|>", {}, ids));
  std::string text;
  for (const uint32_t id : ids) text += std::to_string(id) + " ";
  return text;
}

TEST(TokenizerFile, FindsTheExpressionOfAFileOfTiktoken) {
  const std::string file = ranks(), words = "256 60 124 101 110 100 124 62 ",
                    letters = "97 98 60 124 101 110 100 124 62 ";
  EXPECT_EQ(ids_of("a.model", {{"a.model", file}, {"a.model.pattern", "\\w+|\\W\n"}}), words);
  EXPECT_EQ(ids_of("a.model", {{"a.model", file}, {"a.model.pattern", "."}}), letters);
  EXPECT_EQ(ids_of("a.model", {{"a.model", file}, {"a.model.pattern", "r50k_base"}}), "256 60 124 101 110 100 124 62 ");
  EXPECT_EQ(ids_of("a.model", {{"a.model", file}, {"tokenization_x.py", "    pat_str = r'''.'''\n"}}), letters);
  EXPECT_EQ(ids_of("r50k_base.tiktoken", {{"r50k_base.tiktoken", file}}), words);
  const std::string config = R"({"added_tokens_decoder": {"300": {"content": "<|end|>", "special": true}}})";
  EXPECT_EQ(ids_of("a.model", {{"a.model", file}, {"a.model.pattern", "."}, {"tokenizer_config.json", config}}),
            "97 98 300 ");
}

TEST(TokenizerFile, SaysWhatAFileOfTiktokenLacks) {
  const std::string file = ranks();
  EXPECT_THAT(ids_of("a.model", {{"a.model", file}}), HasSubstr("write the expression, or the name of an encoding"));
  EXPECT_THAT(ids_of("a.model", {{"a.model", file}, {"tokenization_x.py", "pat_str = f()"}}),
              HasSubstr("a.model.pattern"));
  EXPECT_THAT(ids_of("a.model", {{"a.model", file}, {"a.model.pattern", "("}}), HasSubstr("a.model"));
  EXPECT_THAT(ids_of("a.model", {{"a.model", file}, {"a.model.pattern", "."}, {"tokenizer_config.json", "[]"}}),
              HasSubstr("tokenizer_config.json: not a JSON object"));
  EXPECT_THAT(ids_of("a.model", {{"a.model", file},
                                 {"a.model.pattern", "."},
                                 {"tokenizer_config.json", R"({"added_tokens_decoder": {"7": {"content": "x"}}})"}}),
              HasSubstr("the special token x has the id 7 of another token"));
  EXPECT_THAT(ids_of("none.model", {}), HasSubstr("none.model"));
}

TEST(TokenizerFile, SaysThatAFileIsNoneOfTiktoken) {
  EXPECT_THAT(ids_of("a.model", {{"a.model", ""}}), HasSubstr("a.model: empty"));
  EXPECT_THAT(ids_of("a.tiktoken", {{"a.tiktoken", "\x01\xff no ranks"}}), HasSubstr("not a file of tiktoken"));
  EXPECT_THAT(ids_of("a.model", {{"a.model", "{\"version\": 1"}}), HasSubstr("JSON"));
}

}  // namespace
}  // namespace millrace::prepare
