// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/demo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "millrace/base/hash/hash.h"
#include "millrace/lerobot/demo_arm.h"
#include "millrace/lerobot/exact_stats.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {
namespace {

using ::testing::HasSubstr;

// pyarrow, PyAV and LeRobot read whole datasets in tests/e2e/test_lerobot_demo.py.

TEST(DemoArm, PicturesAreTheSameOnEveryMachine) {
  std::string all;
  for (int64_t camera = 0; camera < 4; ++camera) {
    const DemoEpisode episode = demo_episode(7, camera, 30);
    const auto rgb = demo_picture(episode, 20, camera);
    all.append(rgb.begin(), rgb.end());
  }
  const Hash128 hash = xxh3_128(all);
  EXPECT_EQ(fmt::format("{:016x}{:016x}", hash.high, hash.low), "6d6b7101e51f6ff0532956a0b6e470c7");
}

TEST(DemoArm, MovesAsAnArmCan) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const DemoEpisode episode = demo_episode(seed, 1, 30);
    ASSERT_EQ(episode.states.size(), episode.actions.size());
    EXPECT_GE(episode.states.size(), 45U);
    EXPECT_LE(episode.states.size(), 75U);
    for (size_t i = 1; i < episode.states.size(); ++i) {
      for (size_t joint = 0; joint < 2; ++joint) {
        const auto now = demo_values(episode.states[i])[joint], before = demo_values(episode.states[i - 1])[joint];
        EXPECT_LT(std::abs(now - before) * 30, 6) << "rad/s, a fast arm";
      }
    }
    // It gets where it is told to go.
    const auto last = demo_values(episode.states.back()), wanted = demo_values(episode.actions.back());
    EXPECT_NEAR(last[0], wanted[0], 0.02);
    EXPECT_NEAR(last[1], wanted[1], 0.02);
  }
}

TEST(DemoArm, NeighbouringFramesDiffer) {
  const DemoEpisode episode = demo_episode(0, 0, 30);
  for (int64_t frame = 10; frame < 30; ++frame) {
    EXPECT_NE(demo_picture(episode, frame, 0), demo_picture(episode, frame + 1, 0)) << frame;
  }
}

TEST(ExactStats, AreThoseOfNumPy) {
  const std::vector<double> values = {3, 10, 1, 20, 2, 30, 4, 40};
  const ExactStats stats = number_stats(values, 2);
  EXPECT_EQ(stats.count, 4);
  EXPECT_EQ(stats.values[0], (std::vector<double>{1, 10}));
  EXPECT_EQ(stats.values[1], (std::vector<double>{4, 40}));
  EXPECT_DOUBLE_EQ(stats.values[2][0], 2.5);
  EXPECT_DOUBLE_EQ(stats.values[3][1], std::sqrt(125.0));
  EXPECT_DOUBLE_EQ(stats.values[4][0], 1.03);  // numpy.quantile([1, 2, 3, 4], 0.01)
  EXPECT_DOUBLE_EQ(stats.values[6][1], 25);
}

TEST(ExactStats, OfPicturesAreOverAllPixels) {
  PixelHistogram histogram;
  histogram.add(std::vector<uint8_t>{0, 0, 255, 255, 51, 255});
  histogram.add(std::vector<uint8_t>{0, 0, 255, 255, 51, 255});
  const ExactStats stats = image_stats(histogram);
  EXPECT_EQ(stats.count, 2);
  EXPECT_THAT(stats.values[2], ::testing::ElementsAre(0.5, ::testing::DoubleEq(0.1), 1));
  EXPECT_DOUBLE_EQ(stats.values[3][0], 0.5);
  EXPECT_EQ(stats_json(stats, 1).dump(), R"({"min":[[[0.0]],[[0.0]],[[1.0]]],"count":[2]})");
}

TEST(Demo, RefusesWhatItCannotMake) {
  const auto refused = [](const DemoOptions& options) {
    const auto report = write_demo(options, {});
    EXPECT_FALSE(report);
    return report ? std::string() : report.error().to_string();
  };
  EXPECT_THAT(refused({.url = "mem://demo-a/x", .episodes = 0}), HasSubstr("episodes: 1 to 1000"));
  EXPECT_THAT(refused({.url = "mem://demo-a/x", .cameras = 5}), HasSubstr("cameras: 1 to 4"));
  EXPECT_THAT(refused({.url = "mem://demo-a/x", .fps = {0, 1}}), HasSubstr("fps"));
  const Location taken = open_url("mem://demo-b/x").value();
  ASSERT_TRUE(write_object(*taken.storage, "x/other", "here"));
  EXPECT_THAT(refused({.url = "mem://demo-b/x"}), HasSubstr("mem://demo-b/x is not empty"));
}

TEST(Demo, TheSameOptionsGiveTheSameFiles) {
  const auto files = [](const std::string& url) {
    std::map<std::string, std::string> all;
    const auto report = write_demo({.url = url, .episodes = 2, .cameras = 1, .fps = {10, 1}, .codec = "h264"}, {});
    EXPECT_TRUE(report) << report.error().to_string();
    const Location root = open_url(url).value();
    EXPECT_TRUE(for_each_object(*root.storage, "", [&](const ObjectInfo& object) -> Status {
      ASSIGN_OR_RETURN(all[object.key], read_object(*root.storage, object.key));
      return {};
    }));
    return all;
  };
  const auto once = files("mem://demo-c/set"), again = files("mem://demo-d/set");
  EXPECT_THAT(once, ::testing::SizeIs(6));
  EXPECT_EQ(once, again);
}

}  // namespace
}  // namespace millrace::lerobot
