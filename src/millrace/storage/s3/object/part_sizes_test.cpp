// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/part_sizes.h"

#include <gtest/gtest.h>

#include <random>

#include "millrace/base/testing/helpers.h"

namespace millrace::s3 {
namespace {

constexpr int64_t kLongest = int64_t{5} << 40;

TEST(PartSizes, AnObjectThatGrowsFitsIntoTheParts) {
  const PartSizes sizes(8 * kMiB, true);
  EXPECT_GE(sizes.start_of(kMostParts + 1), kLongest);
  EXPECT_EQ(sizes.size_at(0), 8 * kMiB);
  EXPECT_EQ(sizes.size_at(sizes.start_of(1000)), 8 * kMiB);
  EXPECT_EQ(sizes.size_at(sizes.start_of(1001)), 16 * kMiB);
  EXPECT_EQ(sizes.start_of(1001), 8000 * kMiB);
  EXPECT_LE(sizes.size_at(kLongest - 1), int64_t{5} << 30) << "S3 takes no longer part";
}

TEST(PartSizes, PartsFollowEachOther) {
  std::mt19937_64 random(test_seed());
  for (const bool grows : {false, true}) {
    for (int i = 0; i < 2000; ++i) {
      const PartSizes sizes((5 + static_cast<int64_t>(random() % 100)) * kMiB, grows);
      const auto offset = static_cast<int64_t>(random() % static_cast<uint64_t>(kLongest));
      const int64_t number = sizes.number_at(offset);
      const int64_t start = sizes.start_of(number);
      EXPECT_LE(start, offset);
      EXPECT_GT(sizes.start_of(number + 1), offset);
      EXPECT_EQ(sizes.size_at(offset), sizes.start_of(number + 1) - start);
      EXPECT_TRUE(sizes.is_start(start));
      EXPECT_FALSE(sizes.is_start(start + 1));
      EXPECT_EQ(sizes.number_at(sizes.start_of(number + 1)), number + 1);
    }
  }
}

}  // namespace
}  // namespace millrace::s3
