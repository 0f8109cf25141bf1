// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/python_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::lerobot {
namespace {

using ::testing::ElementsAre;

TEST(PythonJson, TakesWhatPythonWrites) {
  const auto json = parse_python_json(R"({"a": [NaN, Infinity, -Infinity, 1.5], "NaN \" Infinity": "NaN"})");
  ASSERT_TRUE(json) << json.error().to_string();
  std::vector<int64_t> shape;
  const auto numbers = numbers_of((*json)["a"], shape);
  ASSERT_TRUE(numbers);
  EXPECT_THAT(*numbers, ElementsAre(std::nullopt, std::nullopt, std::nullopt, 1.5));
  EXPECT_EQ(text_at(*json, "NaN \" Infinity"), "NaN");
}

TEST(PythonJson, SaysWhereItIsNoJson) {
  const auto json = parse_python_json("{\"a\": 1,\n }");
  ASSERT_FALSE(json);
  EXPECT_EQ(json.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(json.error().message(), ::testing::HasSubstr("line 2"));
  EXPECT_FALSE(parse_python_json(std::string(100'000, '[')));
}

TEST(PythonJson, WholeNumbersAreIntegersHoweverTheyAreWritten) {
  const auto json =
      parse_python_json(R"({"a": 20.0, "b": 20, "c": 20.5, "d": true, "e": 1e300, "f": 18446744073709551615})");
  ASSERT_TRUE(json);
  EXPECT_EQ(integer_at(*json, "a"), 20);
  EXPECT_EQ(integer_at(*json, "b"), 20);
  for (const char* key : {"c", "d", "e", "f", "g"}) EXPECT_EQ(integer_at(*json, key), std::nullopt) << key;
}

TEST(PythonJson, NestedListsHaveAShape) {
  std::vector<int64_t> shape;
  EXPECT_TRUE(numbers_of(Json::parse("[[[1]],[[2]],[[3]]]"), shape));
  EXPECT_THAT(shape, ElementsAre(3, 1, 1));
  for (const char* ragged : {"[[1],[2,3]]", "[1,[2]]", "[\"a\"]", "{}", "[[1],2]"}) {
    EXPECT_FALSE(numbers_of(Json::parse(ragged), shape)) << ragged;
  }
}

TEST(PythonJson, LinesAreCountedAsEditorsDo) {
  std::vector<std::string> lines;
  for_each_line("a\r\n\nb\n", [&](int64_t number, std::string_view line) {
    lines.push_back(std::to_string(number) + std::string(line));
  });
  EXPECT_THAT(lines, ElementsAre("1a", "2", "3b"));
}

}  // namespace
}  // namespace millrace::lerobot
