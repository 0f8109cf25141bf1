// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/text_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using std::string_literals::operator""s;
using ::testing::HasSubstr;

std::string refusal(const std::string& content, TextRules rules = {}, DocumentMode mode = DocumentMode::kLine) {
  const Status status = check_text("a file", content, /*whole=*/true, mode, rules);
  return status ? "" : status.error().message();
}

std::string english(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "It is a truth universally acknowledged.\n";
  return text;
}

TEST(TextCheck, NamesOtherFormatsAndTheWayOut) {
  const std::string rest = english(1000);
  for (const auto& [head, format, way_out] : std::vector<std::array<std::string, 3>>{
           {"\xFD"
            "7zXZ\0\0"s,
            "xz", "xz -d"},
           {"BZh91AY&SY", "bz2", "bzip2 -d"},
           {"PK\x03\x04", "zip", "unzip"},
           {std::string(257, 'x') + "ustar", "tar archive", "tar -xf"},
           {"\xFF\xFEt\0e\0"s, "UTF-16", "iconv"},
           {"\xFE\xFF\0t\0e"s, "UTF-16", "iconv"},
           {"\xFF\xFE\0\0t\0\0\0"s, "UTF-32", "UTF-32 -t"},
           {"\x89HDF\r\n\x1A\n", "HDF5", "jsonl"},
           {"version https://git-lfs.github.com/spec/v1\noid", "Git LFS", "git lfs pull"},
           {"PAR1\x15\x04", "Parquet", "copy it again"}}) {
    EXPECT_THAT(refusal(head + rest), HasSubstr(format));
    EXPECT_THAT(refusal(head + rest), HasSubstr(way_out));
  }
}

TEST(TextCheck, TakesText) {
  for (const char* text :
       {"", "\n", "PK for penalty kick", "BZh is a name", "BZh9 is a name", "[1] a note", "{x} a set",
        "{\"quoted\" in braces}", "\xEF\xBB\xBFwith a mark", "version https://example.org"}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

TEST(TextCheck, AShareOfInvalidUtf8IsTaken) {
  std::string text = english(50'000);
  for (int i = 0; i < 50; ++i) text[static_cast<size_t>(i) * 1000] = '\xE9';
  EXPECT_EQ(refusal(text), "");
  text[1] = '\xE9';
  EXPECT_THAT(refusal(text), HasSubstr("51 sequences in 50"));
  EXPECT_EQ(refusal(text, {.max_invalid_utf8 = 0.01}), "");
  EXPECT_EQ(refusal(std::string(1000, '\xE9'), {.max_invalid_utf8 = 1}), "");
  EXPECT_EQ(refusal("a few: \xE9\xFF\xE9"), "");
}

TEST(TextCheck, ACharacterThatTheHeadCutsIsValid) {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "\xE4\xB8\xAD";
    for (size_t cut = 0; cut < 3; ++cut) {
      EXPECT_TRUE(check_text("a file", std::string_view(text).substr(0, text.size() - cut), /*whole=*/false,
                             DocumentMode::kLine, {.max_invalid_utf8 = 0}));
    }
  }
}

TEST(TextCheck, NulsAreNoText) {
  std::string wide;
  for (const char c : english(1000)) wide += std::string{c, '\0'};
  EXPECT_THAT(refusal(wide), HasSubstr("UTF-16"));
  EXPECT_THAT(refusal(std::string(1000, '\0')), HasSubstr("NUL"));
}

TEST(TextCheck, JsonIsNotReadAsText) {
  const std::string lines = "{\"id\": 1, \"body\": \"a text\"}\n{\"id\": 2, \"body\": \"another\"}\n";
  for (const DocumentMode mode : {DocumentMode::kLine, DocumentMode::kParagraph}) {
    EXPECT_THAT(refusal(lines, {}, mode), HasSubstr("its fields: id, body"));
    EXPECT_THAT(refusal("\xEF\xBB\xBF\n {\n  \"text\": \"pretty\"\n}\n", {}, mode), HasSubstr("--json-as-text"));
    EXPECT_EQ(refusal(lines, {.json_as_text = true}, mode), "");
  }
  EXPECT_EQ(refusal(lines, {}, DocumentMode::kJsonl), "");
  EXPECT_EQ(refusal(lines, {}, DocumentMode::kFile), "");
  for (const DocumentMode mode : {DocumentMode::kLine, DocumentMode::kJsonl}) {
    EXPECT_THAT(refusal("[\n" + lines, {}, mode), HasSubstr("jq -c"));
  }
}

}  // namespace
}  // namespace millrace::formats
