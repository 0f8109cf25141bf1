// SPDX-License-Identifier: Apache-2.0
// The caps on open videos, by number and by bytes.
#include "millrace/lerobot/decoders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <vector>

#include "millrace/base/testing.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/lerobot/demo.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

class DecodersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto written =
        write_demo({.url = folder_.path() + "/set", .version = DemoVersion::kV21, .episodes = 4, .codec = "h264"}, {});
    if (!written) GTEST_SKIP() << written.error().to_string();
    auto listed = Tree::list(open_url(folder_.path() + "/set").value());
    ASSERT_TRUE(listed);
    tree_ = std::move(*listed);
    // Files of one camera, which all hold equally much.
    for (const TreeFile& file : tree_.below("videos/")) {
      if (file.path.find("observation.images.front") != std::string::npos) paths_.push_back(file.path);
    }
    ASSERT_GE(paths_.size(), 4u);
  }
  // What one decoder of this set counts.
  int64_t bytes_of_one() {
    Decoders decoders(tree_, 1, kMany, kMany);
    EXPECT_TRUE(decoders.take(paths_[0], {}));
    return decoders.bytes_held();
  }

  TempDir folder_;
  Tree tree_;
  std::vector<std::string> paths_;
};

TEST_F(DecodersTest, BytesOfFreeOnesMakeRoom) {
  const int64_t one = bytes_of_one();
  EXPECT_GT(one, 0);
  Decoders decoders(tree_, 8, 2 * one, kMany);
  for (int round = 0; round < 2; ++round) {
    for (const std::string& path : paths_) {
      ASSERT_TRUE(decoders.take(path, {}));
      EXPECT_LE(decoders.bytes_held(), 2 * one);
      EXPECT_EQ(decoders.bytes_held(), decoders.open_count() * one);
    }
  }
  EXPECT_EQ(decoders.open_count(), 2);
}

TEST_F(DecodersTest, NumberIsACapOfItsOwn) {
  const int64_t one = bytes_of_one();
  Decoders decoders(tree_, 3, kMany, kMany);
  for (const std::string& path : paths_) ASSERT_TRUE(decoders.take(path, {}));
  EXPECT_EQ(decoders.open_count(), 3);
  EXPECT_EQ(decoders.bytes_held(), 3 * one);
}

TEST_F(DecodersTest, ASingleOneMayHoldMore) {
  Decoders decoders(tree_, 8, 1, kMany);
  for (const std::string& path : paths_) {
    ASSERT_TRUE(decoders.take(path, {}));
    EXPECT_EQ(decoders.open_count(), 1);
  }
}

TEST_F(DecodersTest, WhoFindsNoRoomWaitsForALeaseThatEnds) {
  const int64_t one = bytes_of_one();
  Decoders decoders(tree_, 8, one, kMany);
  std::optional<Decoders::Lease> first(decoders.take(paths_[0], {}).value());
  std::stop_source stop;
  stop.request_stop();
  const auto refused = decoders.take(paths_[1], stop.get_token());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(decoders.open_count(), 1);
  EXPECT_EQ(decoders.bytes_held(), one);
  std::atomic<bool> is_free{false}, waited{false};
  Thread other("test", [&] {
    const auto lease = decoders.take(paths_[1], {});
    EXPECT_TRUE(lease);
    waited = is_free.load();
  });
  is_free = true;
  first.reset();
  other.join();
  EXPECT_TRUE(waited);
  EXPECT_EQ(decoders.bytes_held(), one);
}

TEST_F(DecodersTest, AStopEndsAWait) {
  // Once for one of the open videos, once for the memory of one.
  for (const auto& [most_open, most_bytes] : {std::pair<int, int64_t>(1, kMany), {8, 1}}) {
    Decoders decoders(tree_, most_open, most_bytes, kMany);
    const Decoders::Lease first(decoders.take(paths_[0], {}).value());
    std::stop_source stop;
    Thread other("test",
                 [&] { EXPECT_EQ(decoders.take(paths_[1], stop.get_token()).error().code(), ErrorCode::kCancelled); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // most often it waits by then
    stop.request_stop();
    other.join();
    EXPECT_EQ(decoders.open_count(), 1);
  }
}

}  // namespace
}  // namespace millrace::lerobot
