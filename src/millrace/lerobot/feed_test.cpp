// SPDX-License-Identifier: Apache-2.0
// The contents of batches, for any reader. tests/python/test_robot_dataset.py holds it against pyarrow and PyAV.
#include "millrace/lerobot/feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "millrace/base/testing.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/lerobot/demo.h"
#include "millrace/storage/testing/parts_storage.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {
namespace {

using ::testing::HasSubstr;

constexpr const char* kCamera = "observation.images.front";

FeedOptions windows() {
  return {.deltas = {{"action", {0, 1, 2, 3}}, {kCamera, {-1, 0}}}, .threads = 3};
}

class FeedTest : public ::testing::Test {
 protected:
  // One set for all tests.
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    const auto written = write_demo({.url = folder_->path() + "/set", .episodes = 3, .codec = "h264"}, {});
    if (!written) missing_ = new std::string(written.error().to_string());
  }
  static void TearDownTestSuite() {
    delete std::exchange(folder_, nullptr);
    delete std::exchange(missing_, nullptr);
  }
  void SetUp() override {
    if (missing_ != nullptr) GTEST_SKIP() << *missing_;
  }

  static Location root() { return open_url(folder_->path() + "/set").value(); }
  static std::unique_ptr<Feed> open(FeedOptions options, const Location& at = root()) {
    auto feed = Feed::open(at, std::move(options));
    EXPECT_TRUE(feed) << feed.error().to_string();
    return feed ? std::move(*feed) : nullptr;
  }

  struct Rows {
    std::vector<std::vector<std::byte>> arrays;
    std::vector<std::vector<std::string>> texts;
    bool operator==(const Rows&) const = default;
  };
  static Result<Rows> read(const Feed& feed, std::span<const int64_t> numbers, const std::stop_token& stop = {}) {
    Rows rows;
    std::vector<std::byte*> arrays;
    for (const FeedArray& array : feed.arrays()) {
      rows.arrays.emplace_back(numbers.size() * static_cast<size_t>(array.row_bytes));
      arrays.push_back(rows.arrays.back().data());
    }
    rows.texts.resize(feed.texts().size());
    RETURN_IF_ERROR(feed.read(numbers, arrays, rows.texts, stop));
    return rows;
  }
  // Row by row, by one thread.
  static std::vector<Rows> one_by_one(FeedOptions options) {
    options.threads = 1;
    const auto feed = open(options);
    std::vector<Rows> rows;
    for (int64_t row = 0; feed && row < feed->rows(); ++row) rows.push_back(read(*feed, {{row}}).value());
    return rows;
  }
  static void expect_rows(const Rows& batch, std::span<const int64_t> numbers, const std::vector<Rows>& rows) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Rows& row = rows[static_cast<size_t>(numbers[i])];
      for (size_t a = 0; a < row.arrays.size(); ++a) {
        const auto size = static_cast<ptrdiff_t>(row.arrays[a].size()), at = static_cast<ptrdiff_t>(i) * size;
        ASSERT_TRUE(std::equal(row.arrays[a].begin(), row.arrays[a].end(), batch.arrays[a].begin() + at)) << a;
      }
      for (size_t t = 0; t < row.texts.size(); ++t) ASSERT_EQ(batch.texts[t][i], row.texts[t][0]);
    }
  }

  std::vector<int64_t> some_rows(std::mt19937_64& random, int64_t of, int count = 12) const {
    std::vector<int64_t> numbers;
    for (int i = 0; i < count; ++i) numbers.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(of)));
    return numbers;
  }

 private:
  static TempDir* folder_;
  static std::string* missing_;
};

TempDir* FeedTest::folder_ = nullptr;
std::string* FeedTest::missing_ = nullptr;

TEST_F(FeedTest, ABatchIsItsRowsInAnyOrderAndByAnyNumberOfThreads) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  const auto rows = one_by_one(windows());
  for (const int threads : {1, 2, 5}) {
    FeedOptions options = windows();
    options.threads = threads;
    const auto feed = open(options);
    for (int i = 0; i < rounds(6); ++i) {
      const auto numbers = some_rows(random, feed->rows());
      const auto batch = read(*feed, numbers);
      ASSERT_TRUE(batch) << batch.error().to_string();
      expect_rows(*batch, numbers, rows);
    }
  }
}

TEST_F(FeedTest, ThreadsShareItAndItsFewDecoders) {
  const auto rows = one_by_one(windows());
  FeedOptions options = windows();
  options.most_decoders = 2;
  options.row_bytes = options.index_bytes = 1;  // so that all is read anew
  const auto feed = open(options);
  std::vector<Thread> threads;
  for (uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back("reader", [&, number] {
      std::mt19937_64 random(number);
      for (int i = 0; i < rounds(5); ++i) {
        const auto numbers = some_rows(random, feed->rows(), 6);
        const auto batch = read(*feed, numbers);
        ASSERT_TRUE(batch) << batch.error().to_string();
        expect_rows(*batch, numbers, rows);
      }
    });
  }
}

TEST_F(FeedTest, ResizedFramesAreDecodedFramesResized) {
  FeedOptions whole{.cameras = std::vector<std::string>{kCamera}, .channels_last = true};
  const auto stored = open(whole);
  const auto& shape = stored->arrays()[0].shape;
  const std::vector<int64_t> numbers = {7, 90, 7, 3};
  const Rows frames = read(*stored, numbers).value();
  for (const images::Fit fit : {images::Fit::kCrop, images::Fit::kStretch, images::Fit::kPad}) {
    FeedOptions small = whole;
    small.height = 40;
    small.width = 28;
    small.fit = fit;
    const auto feed = open(small);
    ASSERT_EQ(feed->arrays()[0].shape, (std::vector<int64_t>{40, 28, 3}));
    const Rows given = read(*feed, numbers).value();
    const auto frame_bytes = frames.arrays[0].size() / numbers.size();
    std::vector<std::byte> expected;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto* const pixels = reinterpret_cast<const uint8_t*>(frames.arrays[0].data()) + i * frame_bytes;
      const auto resized =
          images::resize(images::PictureView{shape[0], shape[1], 3, {pixels, frame_bytes}}, 40, 28, fit);
      const auto bytes = std::as_bytes(std::span(resized.pixels));
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
    EXPECT_EQ(given.arrays[0], expected);
  }
  FeedOptions wrong = whole;
  wrong.height = 40;
  EXPECT_EQ(Feed::open(root(), wrong).error().code(), ErrorCode::kInvalidArgument);
}

// A set in a service of which only what is needed is downloaded, and that once.
TEST_F(FeedTest, TheCacheOfTheNodeDownloadsOnce) {
  const auto service = std::make_shared<PartsService>();
  const auto storage = make_parts_storage(service);
  const Location local = root();
  const Tree tree = Tree::list(local).value();
  for (const TreeFile& file : tree.files()) {
    ASSERT_TRUE(write_object(*storage, "set/" + file.path, tree.read(file.path, 1 << 24).value()));
  }
  const Location remote{storage, "set", "parts://set"};
  const TempDir folder;
  FeedOptions options = windows();
  options.cache = folder.path() + "/cache";
  options.cache_bytes = 64 << 20;
  const std::vector<int64_t> numbers = {3, 60, 100};
  const Rows expected = read(*open(windows()), numbers).value();
  int64_t downloaded = 0;
  for (int i = 0; i < 2; ++i) {
    const auto feed = open(options, remote);
    const auto given = read(*feed, numbers);
    ASSERT_TRUE(given) << given.error().to_string();
    EXPECT_EQ(*given, expected);
    if (i == 0) downloaded = service->read_bytes;
  }
  EXPECT_GT(downloaded, 0);
  EXPECT_LE(downloaded, tree.bytes());
  EXPECT_EQ(service->read_bytes, downloaded) << "the second one finds all in the cache";
}

TEST_F(FeedTest, WhatIsDamagedIsNamedAndTheRestIsRead) {
  const auto storage = make_parts_storage(std::make_shared<PartsService>());
  const Tree tree = Tree::list(root()).value();
  for (const TreeFile& file : tree.files()) {
    std::string bytes = tree.read(file.path, 1 << 24).value();
    if (file.path.find(std::string(kCamera) + "/") != std::string::npos && file.path.ends_with(".mp4")) {
      for (size_t i = bytes.size() / 3; i < bytes.size() / 3 + 2000; ++i) bytes[i] = 0;
    }
    ASSERT_TRUE(write_object(*storage, "set/" + file.path, bytes));
  }
  const auto feed = open(windows(), {storage, "set", "parts://set"});
  ASSERT_TRUE(feed);
  const auto rows = one_by_one(windows());
  int64_t damaged = 0;
  for (int64_t row = 0; row < feed->rows(); ++row) {
    const auto given = read(*feed, {{row}});
    if (given) {
      EXPECT_EQ(*given, rows[static_cast<size_t>(row)]) << row;
      continue;
    }
    ++damaged;
    EXPECT_EQ(given.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(given.error().to_string(), HasSubstr("file-000.mp4"));
  }
  EXPECT_GT(damaged, 0);
  EXPECT_LT(damaged, feed->rows());
}

TEST_F(FeedTest, AStopEndsARead) {
  const auto feed = open(windows());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(read(*feed, {{1, 2, 3}}, stop.get_token()).error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(read(*feed, {{1, 2, 3}}));
  EXPECT_EQ(read(*feed, {{feed->rows()}}).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::lerobot
