// SPDX-License-Identifier: Apache-2.0
// A process that copies is killed with -9 at random moments: the target is the old object or the new one, and the next
// copy sends again only what was under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <random>

#include "millrace/sync/testing/transfer.h"

namespace millrace::sync {
namespace {

constexpr int kKills = 8;
constexpr int64_t kSize = 7 * kBlockBytes + 4321;
constexpr int64_t kPartsUnderWay = 5;  // what the default memory holds

TEST(TransferKill, TheNextCopyGoesOn) {
  const uint64_t seed = test_seed();
  std::cout << "MILLRACE_TEST_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  const Side from = local_side(), to = local_side();
  const std::string first = content_of(kSize, seed), second = content_of(kSize, seed + 1);
  int gone_on_with = 0;
  int64_t sent_again = 0;
  std::string before = "old";
  put(to.at("y"), before);
  // Beyond kKills only while no kill has come in the middle.
  for (int i = 0; i < kKills || (gone_on_with == 0 && i < 10 * kKills); ++i) {
    SCOPED_TRACE("kill " + std::to_string(i));
    const std::string& content = i % 2 == 0 ? first : second;
    put(from.at("x"), content);
    // Twice, so that what was gone on with is gone on with once more.
    int64_t done = 0;
    for (int kill = 0; kill < 2; ++kill) {
      const auto bytes = static_cast<int64_t>(random() % static_cast<uint64_t>(kSize + 1));
      done = copy_until_killed(from.at("x"), to.at("y"), bytes, std::chrono::microseconds(random() % 5'000));
      const std::string now = get(to.at("y"));
      ASSERT_TRUE(now == before || now == content) << "a mixture";
    }
    const auto engine = *TransferEngine::create();
    const auto report = engine->copy(from.at("x"), *from.storage->stat("x"), to.at("y"));
    ASSERT_TRUE(report) << report.error().to_string();
    ASSERT_TRUE(get(to.at("y")) == content);
    ASSERT_EQ(report->hash, xxh3_128(content));
    if (!report->unchanged) {
      const int64_t again = report->moved_bytes - (kSize - done);
      EXPECT_LE(again, kPartsUnderWay * kBlockBytes);
      sent_again = std::max(sent_again, again);
      gone_on_with += report->resumed_bytes > 0 ? 1 : 0;
    }
    ASSERT_TRUE(to.storage->list_uploads("")->empty());
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(to.dir->path()), {}), 1) << "something was left";
    before = content;
  }
  EXPECT_GT(gone_on_with, 0) << "no child was killed in the middle";
  std::cout << gone_on_with << " of " << kKills << " gone on with, at most " << sent_again << " bytes sent again\n";
}

TEST(TransferKill, AServiceThatGoesAwayLosesNothing) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const Side from = local_side(), to = parts_side();
  const auto engine = *TransferEngine::create();
  for (int i = 0; i < 6; ++i) {
    const std::string content = content_of(6 * kBlockBytes + 1, seed + static_cast<uint64_t>(i));
    put(from.at("x"), content);
    const auto parts = static_cast<int64_t>(random() % 7);
    to.service->parts_left = parts;
    const auto cut = engine->copy(from.at("x"), *from.storage->stat("x"), to.at("y"));
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().code(), ErrorCode::kUnavailable);
    to.service->parts_left = INT64_MAX;
    const auto report = engine->copy(from.at("x"), *from.storage->stat("x"), to.at("y"));
    ASSERT_TRUE(report) << report.error().to_string();
    // The last part, of one byte, may be among them.
    EXPECT_TRUE(report->resumed_bytes == parts * kBlockBytes || report->resumed_bytes == (parts - 1) * kBlockBytes + 1);
    EXPECT_TRUE(get(to.at("y")) == content);
    ASSERT_TRUE(to.storage->abort_uploads(*to.storage->list_uploads("")));
  }
}

}  // namespace
}  // namespace millrace::sync
