// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/index_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/testing.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::loader {
namespace {

using ::testing::HasSubstr;

// Shards of ids without bytes of their own: sample i has i % 7 tokens. Reads of the indexes are counted.
struct Indexes {
  std::shared_ptr<FaultPlan> plan = std::make_shared<FaultPlan>();
  std::shared_ptr<Storage> storage = make_fault_storage(make_memory_storage("indexes"), plan);
  std::vector<Shard> shards;

  explicit Indexes(const std::vector<int64_t>& samples) {
    for (size_t i = 0; i < samples.size(); ++i) {
      formats::ShardIndex index;
      index.kind = formats::SampleExtentKind::kIds;
      index.ids_field = "u16";
      uint64_t at = 0;
      for (int64_t s = 0; s < samples[i]; ++s) {
        index.offset.push_back(at);
        index.tokens.push_back(static_cast<uint32_t>(s % 7));
        index.size.push_back(index.tokens.back() * sizeof(uint16_t));
        index.hash.push_back(static_cast<uint64_t>(s));
        at += index.size.back();
      }
      index.shard_size = static_cast<int64_t>(at);
      const std::string key = fmt::format("{}.bin", i);
      EXPECT_TRUE(write_object(*storage, key + ".index", formats::serialize_shard_index(index)));
      shards.push_back({{storage, key, "mem:" + key}, std::nullopt});
    }
    plan->add({.call = FaultCall::kRead, .count = FaultRule::kForever});
  }

  IndexCache cache(int64_t bytes) const {
    return {shards, bytes,
            [](int64_t) -> Result<formats::ShardIndex> { return fail(ErrorCode::kNotFound, "nothing is built here"); }};
  }
};

order::Window window(int64_t shard, int64_t first, int64_t samples) {
  return {.shard = shard, .first = first, .samples = samples};
}

TEST(IndexCache, GivesTheRowsOfWindows) {
  const Indexes indexes({5000, 3, 2048});
  for (const int64_t bytes : {1 << 10, 64 << 20}) {
    IndexCache cache = indexes.cache(bytes);
    const std::vector<order::Window> windows = {window(0, 1000, 100), window(2, 2047, 1), window(1, 0, 3),
                                                window(0, 0, 5000), window(2, 1023, 2)};
    const auto rows = cache.rows(windows);
    ASSERT_TRUE(rows) << rows.error().to_string();
    for (size_t w = 0; w < windows.size(); ++w) {
      ASSERT_EQ((*rows)[w].samples(), windows[w].samples);
      for (int64_t i = 0; i < windows[w].samples; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ((*rows)[w].tokens[at], (windows[w].first + i) % 7);
        EXPECT_EQ((*rows)[w].hash[at], static_cast<uint64_t>(windows[w].first + i));
      }
    }
  }
}

// What a window costs once its index is open, with a cache that holds one page.
int64_t reads_of_windows(int64_t samples) {
  const Indexes indexes({samples, samples});
  IndexCache cache = indexes.cache(1);
  for (const int64_t shard : {0, 1}) EXPECT_TRUE(cache.open(shard));
  const int64_t before = indexes.plan->hits();
  for (int64_t i = 0; i < 100; ++i) {
    const order::Window one = window(i % 2, (i * 256) % samples, 256);
    EXPECT_TRUE(cache.rows({&one, 1}));
  }
  return indexes.plan->hits() - before;
}

TEST(IndexCache, AWindowCostsTheSameHoweverManySamplesThereAre) {
  const int64_t reads = reads_of_windows(1 << 13);
  EXPECT_EQ(reads, 100 * 4) << "a read for each column";
  EXPECT_EQ(reads_of_windows(1 << 18), reads);
}

TEST(IndexCache, KeepsPages) {
  const Indexes indexes({10'000});
  IndexCache cache = indexes.cache(1 << 20);
  const order::Window one = window(0, 512, 256);
  ASSERT_TRUE(cache.rows({&one, 1}));
  const int64_t before = indexes.plan->hits();
  ASSERT_TRUE(cache.rows({&one, 1}));
  EXPECT_EQ(indexes.plan->hits(), before);
}

TEST(IndexCache, AnIndexThatIsReplacedIsNotMixedIn) {
  const Indexes indexes({10'000});
  IndexCache cache = indexes.cache(1);
  const order::Window first = window(0, 0, 256), other = window(0, 5000, 256);
  ASSERT_TRUE(cache.rows({&first, 1}));
  std::string file = *read_object(*indexes.storage, "0.bin.index");
  file[file.size() / 2] = static_cast<char>(file[file.size() / 2] ^ 1);
  ASSERT_TRUE(write_object(*indexes.storage, "0.bin.index", file));
  const auto rows = cache.rows({&other, 1});
  // A storage may go on with the version that was opened; what it must not do is give the other one's rows.
  if (rows) {
    EXPECT_EQ(rows->front().hash.front(), 5000U);
  }
  IndexCache fresh = indexes.cache(1);
  const auto opened = fresh.open(0);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("0.bin.index"));
}

TEST(IndexCache, AReadThatFailsIsTheAnswer) {
  const Indexes indexes({10'000});
  IndexCache cache = indexes.cache(1);
  ASSERT_TRUE(cache.open(0));
  indexes.plan->add({.call = FaultCall::kRead, .skip = 2, .error = Error(ErrorCode::kUnavailable, "the disk is away")});
  const order::Window one = window(0, 0, 256);
  EXPECT_EQ(cache.rows({&one, 1}).error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(cache.rows({&one, 1})) << "once it is back";
}

}  // namespace
}  // namespace millrace::loader
