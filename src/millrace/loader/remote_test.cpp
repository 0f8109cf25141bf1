// SPDX-License-Identifier: Apache-2.0
// The loader on a storage of S3's shape, where each request takes its time: how many requests it makes, what it does
// while they are under way, and what becomes of errors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "millrace/base/testing.h"
#include "millrace/formats/manifest.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/testing/remote_set.h"

namespace millrace::loader {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A request that waits for another one costs its whole delay, so opening one shard after the other would take a
// round trip for each.
constexpr int kShards = 40;
constexpr milliseconds kRoundTrip{20};
constexpr int64_t kFewRoundTrips = 24;  // there are 2 to 9, more where threads start late; one by one there are 40

TEST(RemoteLoader, WhatTheManifestSaysIsNotReadAgain) {
  const RemoteSet set(kShards, 600);
  set.slow(kRoundTrip);
  const auto loader = make(set, remote_options(Collate::kPad));
  ASSERT_TRUE(loader->open());
  EXPECT_EQ(set.plan->hits(), 2) << "the manifest, opened and read";
  ASSERT_TRUE(loader->next());
  EXPECT_LE(set.plan->round_trips(), kFewRoundTrips) << "manifest; indexes and shards, at once; samples";
}

TEST(RemoteLoader, FortyIndexesTakeFewRoundTrips) {
  const RemoteSet set(kShards, 600);
  set.slow(kRoundTrip);
  const auto loader = make(set, remote_options(Collate::kPack));
  ASSERT_TRUE(loader->open());
  EXPECT_EQ(set.plan->hits(), 2 + 2 * kShards) << "each index is opened and read, once";
  EXPECT_LE(set.plan->round_trips(), kFewRoundTrips);
}

TEST(RemoteLoader, ShardsThatAreOneWindowNeedNoIndexToBePacked) {
  const RemoteSet set(kShards, 20);
  set.slow(kRoundTrip);
  LoaderOptions options = remote_options(Collate::kPack);
  options.order.window_samples = 20;
  const auto loader = make(set, options);
  ASSERT_TRUE(loader->open());
  EXPECT_EQ(set.plan->hits(), 2);
}

TEST(RemoteLoader, WithoutAManifestFortyShardsTakeFewRoundTripsToo) {
  const RemoteSet set(kShards, 600, /*with_manifest=*/false);
  set.slow(kRoundTrip);
  const auto loader = make(set, remote_options(Collate::kPack), kShards);
  ASSERT_TRUE(loader->open());
  EXPECT_EQ(set.plan->hits(), 2 * kShards);
  ASSERT_TRUE(loader->next());
  EXPECT_LE(set.plan->round_trips(), kFewRoundTrips);
}

TEST(RemoteLoader, ADeadlinePassesWhileTheDatasetIsOpened) {
  const RemoteSet set(2, 50);
  set.slow(milliseconds(100), FaultCall::kOpenRead, "manifest");
  const auto loader = make(set, remote_options(Collate::kPad));
  EXPECT_EQ(loader->next(Clock::now()).error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(loader->open(Clock::now()).error().code(), ErrorCode::kTimeout);
  EXPECT_TRUE(loader->next());
}

TEST(RemoteLoader, AnErrorOfOpeningReachesWhoeverAsksNextAndIsTriedAgain) {
  const RemoteSet set(2, 50);
  set.plan->add({.call = FaultCall::kOpenRead,
                 .key_part = "manifest",
                 .delay = milliseconds(30),
                 .error = Error(ErrorCode::kTimeout, "the service is slow")});
  const auto loader = make(set, remote_options(Collate::kPad));
  auto answer = loader->next(Clock::now());
  while (!answer && answer.error().code() == ErrorCode::kTimeout) answer = loader->next(Clock::now());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable) << "timeout means: call again";
  EXPECT_THAT(answer.error().to_string(), HasSubstr("the service is slow"));
  EXPECT_TRUE(loader->next());
}

TEST(RemoteLoader, CloseEndsAWaitForTheDataset) {
  const RemoteSet set(2, 50);
  set.slow(milliseconds(100), FaultCall::kOpenRead);
  const auto loader = make(set, remote_options(Collate::kPad));
  Thread closer("close", [&] {
    std::this_thread::sleep_for(milliseconds(20));
    loader->close();
  });
  EXPECT_EQ(loader->next().error().code(), ErrorCode::kCancelled);
}

// All rows of an epoch in their order, or up to an error.
std::vector<std::vector<int64_t>> rows_of(Loader& loader, std::optional<Error>* error = nullptr) {
  std::vector<std::vector<int64_t>> rows;
  for (;;) {
    auto batch = loader.next();
    if (!batch && error != nullptr) *error = std::move(batch).error();
    if (!batch || !*batch) return rows;
    const auto* ids = reinterpret_cast<const int64_t*>((*batch)->arrays[0].data);
    for (int64_t row = 0; row < (*batch)->rows; ++row, ids += (*batch)->seq_len) {
      rows.emplace_back(ids, ids + (*batch)->seq_len);
    }
  }
}

TEST(RemoteLoader, LittleMemoryChangesNoBatch) {
  const RemoteSet set(7, 1500);
  LoaderOptions options = remote_options(Collate::kPad, 6);
  options.drop_last = false;
  options.order.block_windows = 2;
  options.order.window_samples = 64;
  const auto expected = rows_of(*make(set, options));
  ASSERT_EQ(std::ssize(expected), set.samples);
  set.slow(milliseconds(1), FaultCall::kRead, ".bin");
  options.memory_bytes = 256 << 10;
  EXPECT_EQ(rows_of(*make(set, options)), expected);
}

TEST(RemoteLoader, ASampleLargerThanTheMemoryForReadsSaysWhatToRaise) {
  const RemoteSet set(1, 4, /*with_manifest=*/true, /*ids_in_each=*/45'000);  // 90 kB in the shard
  LoaderOptions options = remote_options(Collate::kPad, 2);
  options.order.window_samples = options.order.block_windows = 1;
  options.memory_bytes = 400 << 10;  // 75 kB of which are read into
  const auto batch = make(set, options)->next();
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().sys_errno(), ENOMEM);
  EXPECT_THAT(batch.error().to_string(), HasSubstr("a sample takes"));
  EXPECT_THAT(batch.error().to_string(), HasSubstr("raise memory_bytes"));
  options.memory_bytes = 800 << 10;
  EXPECT_TRUE(make(set, options)->next());
}

TEST(RemoteLoader, ADamagedIndexFailsOnlyTheBatchesThatNeedIt) {
  const RemoteSet set(6, 40);
  ASSERT_TRUE(write_object(*set.storage, "set/004.bin.index", "no index"));
  LoaderOptions options = remote_options(Collate::kPad, 8);
  options.order.shuffle = false;
  options.order.window_samples = 40;
  options.order.block_windows = 1;
  std::optional<Error> error;
  EXPECT_EQ(std::ssize(rows_of(*make(set, options), &error)), 4 * 40);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kCorruption);
  EXPECT_THAT(error->to_string(), HasSubstr("004.bin.index"));
}

TEST(RemoteLoader, AMissingShardFailsOnlyTheBatchesThatNeedIt) {
  const RemoteSet set(6, 40);
  ASSERT_TRUE(set.storage->remove(std::vector<std::string>{"set/003.bin"}));
  LoaderOptions options = remote_options(Collate::kPad, 8);
  options.order.shuffle = false;
  options.order.window_samples = 40;
  options.order.block_windows = 6;
  std::optional<Error> error;
  EXPECT_EQ(std::ssize(rows_of(*make(set, options), &error)), 3 * 40);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
}

TEST(RemoteLoader, AReadThatTimesOutIsUnavailable) {
  const RemoteSet set(2, 40);
  set.plan->add({.call = FaultCall::kRead,
                 .key_part = "set/000.bin",
                 .skip = 1,  // the index
                 .count = FaultRule::kForever,
                 .error = Error(ErrorCode::kTimeout, "no answer")});
  std::optional<Error> error;
  rows_of(*make(set, remote_options(Collate::kPad)), &error);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable) << "timeout means: call again";
}

TEST(RemoteLoader, AManifestThatCountsOtherTokensIsCorruption) {
  RemoteSet set(2, 40);
  const std::string text = read_object(*set.storage, "set/manifest.json").value();
  auto manifest = formats::parse_manifest(text, "manifest").value();
  manifest.shards[1].tokens += 1;
  ASSERT_TRUE(write_object(*set.storage, "set/manifest.json", formats::serialize_manifest(manifest)));
  for (const Collate collate : {Collate::kPad, Collate::kPack}) {
    std::optional<Error> error;
    LoaderOptions options = remote_options(collate);
    options.order.window_samples = 40;
    rows_of(*make(set, options), &error);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorruption);
    EXPECT_THAT(error->to_string(), HasSubstr("the manifest counts"));
  }
}

TEST(RemoteLoader, IsClosedAndMovedWhileReadsAreUnderWay) {
  const RemoteSet set(8, 200);
  set.slow(milliseconds(5), FaultCall::kRead, ".bin");
  LoaderOptions options = remote_options(Collate::kPad);
  options.epochs = 0;
  for (int round = 0; round < rounds(20); ++round) {
    const auto loader = make(set, options);
    const std::string state = *loader->state();
    const auto first = loader->next();
    ASSERT_TRUE(first && *first);
    ASSERT_TRUE(loader->load_state(state));
    const auto again = loader->next();
    ASSERT_TRUE(again && *again);
    const size_t bytes = static_cast<size_t>((*first)->rows * (*first)->seq_len) * sizeof(int64_t);
    EXPECT_EQ(std::memcmp((*first)->arrays[0].data, (*again)->arrays[0].data, bytes), 0);
  }
}

}  // namespace
}  // namespace millrace::loader
