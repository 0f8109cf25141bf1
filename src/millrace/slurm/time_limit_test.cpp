// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/time_limit.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace::slurm {
namespace {

TEST(SlurmTimeLimits, EveryFormThatCommandsPrint) {
  const std::vector<std::pair<std::string, std::optional<int64_t>>> cases{
      {"45", 2700},    {"10:00", 600},    {"1:00:00", 3600}, {"1-00:30:00", 88200},
      {"2-3", 183600}, {"UNLIMITED", {}}, {"INVALID", {}},   {"", {}}};
  for (const auto& [text, seconds] : cases) EXPECT_EQ(parse_time_limit(text), seconds) << text;
}

TEST(SlurmTimeLimits, EveryFormThatSbatchTakes) {
  EXPECT_EQ(parse_time_limit("30"), 1800);
  EXPECT_EQ(parse_time_limit("30:15"), 1815);
  EXPECT_EQ(parse_time_limit("01:30:00"), 5400);
  EXPECT_EQ(parse_time_limit("7-00:00:00"), 7 * 86400);
  EXPECT_EQ(parse_time_limit("2-12"), 60 * 3600);
  EXPECT_EQ(parse_time_limit("1:2:3:4"), std::nullopt);
  EXPECT_EQ(parse_time_limit("1h"), std::nullopt);
  EXPECT_EQ(parse_time_limit("1-"), std::nullopt);
  EXPECT_TRUE(is_unlimited("UNLIMITED"));
  EXPECT_FALSE(is_unlimited("1:00"));
}

}  // namespace
}  // namespace millrace::slurm
