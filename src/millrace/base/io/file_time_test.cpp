// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/file_time.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int64_t kYear2500 = 16'725'225'600;

TEST(FileTimeTest, HoldsTimesThat64BitsOfNanosecondsDoNot) {
  const FileTime late(kYear2500, 123'456'789);
  EXPECT_EQ(late.ns_text(), "16725225600123456789");
  EXPECT_EQ(FileTime::of_ns_text("16725225600123456789"), late);
  EXPECT_GT(late, FileTime(std::chrono::sys_time<nanoseconds>(nanoseconds::max())));
  EXPECT_EQ(FileTime(late.as_timespec()), late);
  EXPECT_DOUBLE_EQ(late.as_seconds(), 16'725'225'600.123456789);
  EXPECT_NE(late.wrapped_ns(), FileTime(kYear2500, 123'456'788).wrapped_ns());
  EXPECT_FALSE(late.fits_64_bits());
  EXPECT_TRUE(FileTime(std::chrono::sys_time<nanoseconds>(nanoseconds::max())).fits_64_bits());
  EXPECT_TRUE(FileTime(-9'223'372'037, 145'224'192).fits_64_bits());  // -2^63
  EXPECT_FALSE(FileTime(-9'223'372'037, 145'224'191).fits_64_bits());
  EXPECT_FALSE((FileTime(std::chrono::sys_time<nanoseconds>(nanoseconds::max())) + nanoseconds(1)).fits_64_bits());
}

TEST(FileTimeTest, CountsBackwardsBefore1970) {
  const FileTime early(std::chrono::sys_time<nanoseconds>(nanoseconds(-1)));
  EXPECT_EQ(early.seconds(), -1);
  EXPECT_EQ(early.nanoseconds(), 999'999'999);
  EXPECT_EQ(early.ns_text(), "-1");
  EXPECT_EQ(early.wrapped_ns(), -1);
  EXPECT_EQ(FileTime::of_ns_text("-1"), early);
  EXPECT_LT(early, FileTime());
  EXPECT_EQ(FileTime(std::chrono::sys_time<milliseconds>(milliseconds(-1500))), FileTime(-2, 500'000'000));
}

TEST(FileTimeTest, AddsAcrossSeconds) {
  EXPECT_EQ(FileTime(5, 999'999'999) + nanoseconds(1), FileTime(6, 0));
  EXPECT_EQ(FileTime(5, 0) + nanoseconds(-1), FileTime(4, 999'999'999));
  EXPECT_EQ(FileTime(5, 1) + nanoseconds(-3'000'000'000), FileTime(2, 1));
  EXPECT_EQ(FileTime(5, 700'000'000) + nanoseconds(2'600'000'000), FileTime(8, 300'000'000));
}

TEST(FileTimeTest, TheLastOneGoesThroughText) {
  using Limits = std::numeric_limits<int64_t>;
  for (const FileTime& time : {FileTime(Limits::max(), 999'999'999), FileTime(Limits::min(), 0)}) {
    EXPECT_EQ(FileTime::of_ns_text(time.ns_text()), time) << time.ns_text();
  }
  for (const char* const text : {"", "-", "5x", "1 ", "99999999999999999999999999999"}) {
    EXPECT_TRUE(FileTime::of_ns_text(text).is_epoch()) << text;
  }
}

}  // namespace
}  // namespace millrace
