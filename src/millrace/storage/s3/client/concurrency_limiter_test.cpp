// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/concurrency_limiter.h"

#include <gtest/gtest.h>

#include <chrono>

namespace millrace::s3 {
namespace {

TEST(ConcurrencyLimiter, ShrinksOnceForABurstAndGrowsAgain) {
  ConcurrencyLimiter limiter({.max_under_way = 10});
  int begun = 0;
  for (int i = 0; i < 12; ++i) limiter.enter(0, [&](Clock::time_point) { ++begun; });
  EXPECT_EQ(begun, 10);
  for (int i = 0; i < 5; ++i) limiter.slow_down();
  EXPECT_DOUBLE_EQ(limiter.window(), 6) << "answers to one burst count once";
  for (int i = 0; i < 4; ++i) limiter.leave();
  EXPECT_EQ(begun, 10) << "as many as the smaller window are still under way";
  for (int i = 0; i < 2; ++i) limiter.leave();
  EXPECT_EQ(begun, 12);
  for (int i = 0; i < 200; ++i) {
    limiter.enter(0, [](Clock::time_point) {});
    limiter.leave();
  }
  EXPECT_DOUBLE_EQ(limiter.window(), 10);
}

TEST(ConcurrencyLimiter, KeepsTheLimitsOfTheUser) {
  ConcurrencyLimiter limiter({.max_under_way = 1000, .requests_per_second = 100, .bytes_per_second = 1e6});
  Clock::time_point last{};
  const auto begin = Clock::now();
  for (int i = 0; i < 101; ++i) limiter.enter(0, [&](Clock::time_point at) { last = at; });
  EXPECT_GE(last - begin, std::chrono::milliseconds(850)) << "100 a second, after a burst of a tenth";
  for (int i = 0; i < 3; ++i) limiter.enter(1'000'000, [&](Clock::time_point at) { last = at; });
  EXPECT_GE(last - begin, std::chrono::milliseconds(1'850));
}

}  // namespace
}  // namespace millrace::s3
