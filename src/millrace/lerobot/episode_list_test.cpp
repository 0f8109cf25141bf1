// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/episode_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace millrace::lerobot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refused(const Result<std::vector<size_t>>& result) {
  return result ? "" : result.error().message();
}

Result<std::vector<size_t>> episodes(std::string_view list, size_t count) {
  ASSIGN_OR_RETURN(const auto ranges, parse_episode_list(list));
  return episodes_in(ranges, count);
}

TEST(EpisodeList, NamesEpisodesInTheirOrder) {
  EXPECT_THAT(*episodes("9,0-2,4", 10), ElementsAre(0, 1, 2, 4, 9));
  EXPECT_THAT(*episodes("3", 4), ElementsAre(3));
  EXPECT_THAT(refused(episodes("0-4", 4)), HasSubstr("no episode 4: the dataset has 0 to 3"));
  EXPECT_THAT(refused(episodes("0-2,1", 4)), HasSubstr("episode 1 is named twice"));
  for (const char* wrong : {"", ",", "1,", "-1", "2-1", "1-", "a", "1 ", "1-2-3", "+1", "99999999999999"}) {
    EXPECT_FALSE(parse_episode_list(wrong)) << wrong;
  }
}

TEST(EpisodeList, FractionsLoseNoEpisode) {
  for (size_t count = 10; count < 200; ++count) {
    const auto ends = ends_of_fractions({0.7, 0.2, 0.1}, count);
    ASSERT_TRUE(ends) << count;
    EXPECT_EQ(ends->back(), count);
    EXPECT_NEAR(static_cast<double>(ends->front()), 0.7 * static_cast<double>(count), 0.5);
  }
  EXPECT_THAT(*ends_of_fractions({0.5}, 3), ElementsAre(2));
  EXPECT_THAT(refused(ends_of_fractions({0.1, 0.1}, 3)), HasSubstr("of 3 episodes is none"));
  for (const std::vector<double>& wrong : {std::vector{0.6, 0.5}, {0.0}, {-0.1}, {std::nan("")}}) {
    EXPECT_FALSE(ends_of_fractions(wrong, 100));
  }
}

TEST(EpisodeList, NamesOfPartsAreFolders) {
  EXPECT_EQ(parse_named("train=0-9")->first, "train");
  EXPECT_EQ(parse_named("a b==")->second, "=");
  for (const char* wrong : {"", "=1", "train", "../a=1", "a/b=1", ".a=1"}) EXPECT_FALSE(parse_named(wrong)) << wrong;
}

}  // namespace
}  // namespace millrace::lerobot
