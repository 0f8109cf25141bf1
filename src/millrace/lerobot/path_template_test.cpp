// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/path_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::lerobot {
namespace {

using ::testing::ElementsAre;

std::string formatted(std::string_view text, const TemplateValues& values) {
  const auto parsed = PathTemplate::parse(text);
  if (!parsed) return "bad template";
  const auto out = parsed->format(values);
  return out ? *out : "no value";
}

TEST(PathTemplate, IsFormattedAsPythonDoes) {
  const TemplateValues values = {
      {"episode_chunk", int64_t{1}}, {"episode_index", int64_t{1234567}}, {"video_key", "cam"}};
  EXPECT_EQ(formatted("data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", values),
            "data/chunk-001/episode_1234567.parquet");
  EXPECT_EQ(formatted("{video_key}/{episode_chunk}", values), "cam/1");
  EXPECT_EQ(formatted("{{{episode_chunk:2d}}}", values), "{ 1}");
  EXPECT_EQ(formatted("{video_key:5s}|", values), "cam  |");
  EXPECT_EQ(formatted("{episode_chunk:03}", {{"episode_chunk", int64_t{-7}}}), "-07");
  EXPECT_EQ(formatted("{file_index:03d}", values), "no value");
  EXPECT_EQ(formatted("{video_key:03d}", values), "no value");
}

TEST(PathTemplate, ThatCannotBeReadIsRefused) {
  for (const char* text : {"{", "}", "a{b", "{episode_index:06x}", "{a.b}", "{0}", "{}", "{a:999999d}"}) {
    EXPECT_FALSE(PathTemplate::parse(text)) << text;
  }
}

TEST(PathTemplate, NamesAreTold) {
  const auto parsed = PathTemplate::parse("{a}/{b}/{a}");
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->names(), ElementsAre("a", "b"));
  EXPECT_TRUE(parsed->uses("b"));
  EXPECT_FALSE(parsed->uses("c"));
}

}  // namespace
}  // namespace millrace::lerobot
