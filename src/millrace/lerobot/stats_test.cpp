// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/lerobot/kept_numbers.h"
#include "millrace/lerobot/merge_stats.h"
#include "millrace/lerobot/picture_stats.h"

namespace millrace::lerobot {
namespace {

// tests/e2e/test_lerobot_stats.py holds whole datasets against NumPy; here are the parts.

// Counts and sums of numpy.round(numpy.linspace(0, length - 1, count)).
TEST(PictureStats, SamplesFramesAsLeRobot) {
  EXPECT_THAT(sampled_frames(0), ::testing::IsEmpty());
  EXPECT_THAT(sampled_frames(1), ::testing::ElementsAre(0));
  for (const auto& [length, count, sum] : std::vector<std::tuple<int64_t, size_t, int64_t>>{
           {50, 50, 1225}, {101, 100, 5000}, {300, 100, 14950}, {1000, 177, 88412}, {220000, 10000, 1099995000}}) {
    const std::vector<int64_t> frames = sampled_frames(length);
    EXPECT_EQ(frames.size(), count);
    EXPECT_EQ(frames.back(), length - 1);
    EXPECT_EQ(std::accumulate(frames.begin(), frames.end(), int64_t{0}), sum) << length;
  }
}

TEST(PictureStats, TakesFewerPixelsOfLargePictures) {
  EXPECT_EQ(sampled_stride(299, 200), 1);
  EXPECT_EQ(sampled_stride(640, 480), 4);
  EXPECT_EQ(sampled_stride(480, 640), 4);
  EXPECT_EQ(sampled_stride(300, 300), 2);
  PixelHistogram histogram;
  // 3 x 3 pixels; of a stride of 2 the corners.
  const std::vector<uint8_t> rgb = {1, 0, 0, 9, 9, 9, 2, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 3, 0, 0, 9, 9, 9, 4, 0, 0};
  histogram.add(rgb, 3, 2);
  EXPECT_EQ(histogram.counts[0][9], 0);
  EXPECT_EQ(histogram.counts[1][0], 4);
  EXPECT_EQ(image_stats(histogram).values[1][0], 4.0 / 255);
}

double linear_quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  return values[below] +
         (values[std::min(below + 1, values.size() - 1)] - values[below]) * (place - static_cast<double>(below));
}

TEST(MergeStats, IntervalsHoldTheQuantileOfAllValues) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(test_seed());
  for (int round = 0; round < rounds(200); ++round) {
    std::vector<DimensionStats> parts;
    std::vector<double> all;
    for (size_t p = 0; p < 1 + random() % 6; ++p) {
      std::vector<double> values(1 + random() % 40);
      const auto centre = static_cast<double>(random() % 9);
      for (double& value : values) value = centre + static_cast<double>(random() % 7);
      const auto [low, high] = std::ranges::minmax(values);
      parts.push_back({static_cast<int64_t>(values.size()), low, high, {}});
      for (const double share : kStatQuantiles) {
        if (random() % 4 != 0) parts.back().quantiles.emplace_back(share, linear_quantile(values, share));
      }
      all.insert(all.end(), values.begin(), values.end());
    }
    for (const double share : kStatQuantiles) {
      const auto [low, high] = quantile_interval(parts, share);
      const double truth = linear_quantile(all, share);
      EXPECT_LE(low, truth + 1e-12);
      EXPECT_GE(high, truth - 1e-12);
    }
  }
}

TEST(MergeStats, AnIntervalIsNoWiderThanWhatIsKnown) {
  const DimensionStats part{101, 0, 100, {{0.01, 1}, {0.5, 50}, {0.99, 99}}};
  EXPECT_EQ(quantile_interval({part}, 0.5), std::pair(50.0, 50.0));
  // The median of two equal parts is still known; of unequal parts only an interval is.
  EXPECT_EQ(quantile_interval({part, part}, 0.5), std::pair(50.0, 50.0));
  EXPECT_EQ(quantile_interval({part, {101, 60, 300, {}}}, 0.5), std::pair(60.0, 100.0));
}

TEST(KeptNumbers, KeepsWhatFitsAndDropsTheRest) {
  std::atomic<int64_t> budget = 100;
  const auto kept_of = [](const KeptNumbers& kept, size_t feature) {
    std::vector<double> out;
    size_t bytes = 0;
    kept.visit(feature, [&](const auto* values, size_t count) {
      out.insert(out.end(), values, values + count);
      bytes = sizeof(*values);
    });
    return std::pair(out, bytes);
  };
  KeptNumbers kept(2, budget);
  kept.add(0, std::vector<double>{1, 2, 3});
  kept.add(1, std::vector<double>{0.5});
  EXPECT_EQ(budget, 100 - 16);
  kept.add(0, std::vector<double>{0.1});  // no float32
  EXPECT_EQ(kept_of(kept, 0), std::pair(std::vector<double>({1, 2, 3, 0.1}), size_t{8}));
  EXPECT_EQ(kept_of(kept, 1), std::pair(std::vector<double>({0.5}), size_t{4}));
  kept.add(1, std::vector<double>(100, 0.5));
  EXPECT_FALSE(kept.is_whole());
  EXPECT_EQ(budget, 100) << "all of it is given back";
}

}  // namespace
}  // namespace millrace::lerobot
