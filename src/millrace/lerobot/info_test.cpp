// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/info.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::lerobot {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(Info, TakesWhatEveryVersionWrites) {
  Report report(0);
  const Info info = parse_info(R"({"codebase_version": "v2.0", "robot_type": "arm", "fps": 20.0, "chunks_size": 1000,
    "splits": {"train": "0:5"}, "data_path": "data/{episode_index:06d}.parquet", "features": {
    "observation.images.top": {"dtype": "video", "shape": [3, 48, 64], "names": ["channels", "height", "width"],
                               "video_info": {"video.fps": 20.0, "video.codec": "h264"}},
    "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["a", "b"]}}}})",
                               report);
  EXPECT_TRUE(report.take().empty());
  EXPECT_EQ(info.version, Version::kV20);
  EXPECT_EQ(info.frame_rate(), 20);
  EXPECT_THAT(info.splits, ElementsAre(Pair("train", "0:5")));
  const Feature* top = info.find("observation.images.top");
  ASSERT_NE(top, nullptr);
  EXPECT_EQ(top->picture_size(), std::pair(int64_t{48}, int64_t{64}));
  EXPECT_EQ(top->video.key, "video_info");
  EXPECT_THAT(info.find("action")->names, ElementsAre("a", "b"));
}

TEST(Info, AnyTextIsTaken) {
  for (const char* text : {"", "{", "[]", "null", R"({"features": []})", R"({"features": {"a": 1}, "fps": NaN})"}) {
    Report report(0);
    parse_info(text, report);
    EXPECT_GT(report.errors_so_far(), 0) << text;
  }
}

TEST(Info, RulesAreNumberedWithoutAGap) {
  ASSERT_EQ(dataset_rules().size(), static_cast<size_t>(kRules));
  for (size_t i = 0; i < dataset_rules().size(); ++i) {
    EXPECT_EQ(dataset_rules()[i].id, fmt::format("LR{:03}", i + 1));
  }
}

TEST(Report, KeepsTheFirstOfEachRuleAndCountsTheRest) {
  Report report(2);
  for (int i = 9; i >= 0; --i) report.add(16, {.file = "a", .data = {.episode = i}}, "empty");
  const std::vector<Finding> findings = report.take();
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_THAT(findings[0].message, ::testing::HasSubstr("8 more findings"));
  EXPECT_EQ(findings[1].data.episode, 0);
  EXPECT_EQ(findings[2].data.episode, 1);
}

}  // namespace
}  // namespace millrace::lerobot
