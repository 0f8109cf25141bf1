// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/json_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(JsonColumns, KnowsTheKindsOfEachColumn) {
  JsonColumns columns;
  std::vector<std::string> unread;
  const auto keep = [&](std::string_view line) { unread.emplace_back(line); };
  columns.add(
      "{\"a\": 1, \"b\": true, \"c\": null}\n\n  \r\n{\"a\": 1e999, \"t\\u0065xt\": \"x\", \"n\": {\"a\": 1}}\n", keep);
  columns.add("{\"b\": -12345678901234567890, \"l\": [1, 2]}", keep);
  EXPECT_EQ(columns.rows(), 3);
  EXPECT_THAT(unread, IsEmpty());
  const auto kinds = [&](std::string_view name) { return columns.columns().find(name)->second.kinds; };
  EXPECT_EQ(kinds("a"), JsonColumns::kInteger | JsonColumns::kFloat);
  EXPECT_EQ(kinds("b"), JsonColumns::kBool | JsonColumns::kInteger | JsonColumns::kLarge);
  EXPECT_EQ(kinds("c"), JsonColumns::kNull);
  EXPECT_EQ(kinds("text"), JsonColumns::kOther);
  EXPECT_EQ(kinds("n"), JsonColumns::kOther);
  EXPECT_EQ(kinds("l"), JsonColumns::kOther);
  EXPECT_EQ(columns.columns().find("a")->second.rows, 2);
}

TEST(JsonColumns, LeavesOtherLinesToTheCaller) {
  JsonColumns columns;
  std::vector<std::string> unread;
  columns.add("{\"a\": NaN}\n[1]\n{\"a\": 1\n{\"a\": 2}\n", [&](std::string_view line) { unread.emplace_back(line); });
  EXPECT_THAT(unread, ElementsAre("{\"a\": NaN}", "[1]", "{\"a\": 1"));
  EXPECT_EQ(columns.columns().at("a").kinds, JsonColumns::kInteger);
}

TEST(JsonColumns, ForgetsColumnsWithoutAnEnd) {
  JsonColumns columns;
  std::string lines;
  for (size_t i = 0; i <= JsonColumns::kMostColumns; ++i) lines += "{\"" + std::to_string(i) + "\": 1}\n";
  columns.add(lines + "{\"a\": 1}", [](std::string_view) {});
  EXPECT_THAT(columns.columns(), IsEmpty());
  EXPECT_EQ(columns.rows(), static_cast<int64_t>(JsonColumns::kMostColumns) + 2);
}

}  // namespace
}  // namespace millrace::formats
