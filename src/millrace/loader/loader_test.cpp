// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <random>
#include <set>

#include "millrace/base/testing.h"
#include "millrace/base/thread/sync.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/loader/testing/test_sets.h"
#include "millrace/storage/url.h"

namespace millrace::loader {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Loader, EverySampleOnceAnEpochAndTheSameStepsAtEveryWorldSize) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const TestSet data = make_dataset("every-sample", {101, 57, 1, 230, 64}, seed);
  LoaderOptions options = options_for(data, 12);
  options.drop_last = false;
  const Steps one = run(options, 1);
  std::multiset<std::vector<int64_t>> all, expected;
  for (const auto& rows : one) all.insert(rows.begin(), rows.end());
  for (const auto& ids : data.samples) {
    std::vector<int64_t> row(ids.begin(), ids.begin() + std::min<int64_t>(16, static_cast<int64_t>(ids.size())));
    row.resize(16, 0);
    expected.insert(std::move(row));
  }
  EXPECT_EQ(all, expected);
  for (const int64_t world : {2, 3, 5}) EXPECT_EQ(run(options, world), one) << world << " ranks";
}

TEST(Loader, PackingLosesNoToken) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const TestSet data = make_dataset("packing", {80, 90, 33}, seed);
  LoaderOptions options = options_for(data, 4, 32);
  options.collate = Collate::kPack;
  options.pad_id = -1;
  options.drop_last = false;
  std::multiset<int64_t> seen, expected;
  int64_t rows = 0;
  for (const auto& step : run(options, 2)) {
    for (const auto& row : step) {
      ++rows;
      for (const int64_t id : row) {
        if (id >= 0) seen.insert(id);
      }
    }
  }
  for (const auto& ids : data.samples) expected.insert(ids.begin(), ids.end());
  EXPECT_EQ(seen, expected);
  EXPECT_LE(rows, static_cast<int64_t>(expected.size()) / 32 + 32) << "at most one short row a block";
}

TEST(Loader, StateContinuesExactlyAtAnotherWorldSizeAndAcrossEpochs) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const TestSet data = make_dataset("state", {40, 50, 60}, seed);
  for (const Collate collate : {Collate::kPad, Collate::kPack}) {
    LoaderOptions options = options_for(data, 6);
    options.collate = collate;
    options.epochs = 2;
    const Steps whole = run(options, 2);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 6; ++round) {
      const auto cut = static_cast<int64_t>(random() % whole.size());
      const int64_t before = 1 + static_cast<int64_t>(random() % 3), after = 1 + static_cast<int64_t>(random() % 3);
      SCOPED_TRACE(fmt::format("cut at {} of {}, {} -> {} ranks", cut, whole.size(), before, after));
      std::string state;
      Steps joined = run(options, before, cut, {}, &state);
      const Steps rest = run(options, after, 1 << 30, state);
      joined.insert(joined.end(), rest.begin(), rest.end());
      EXPECT_EQ(joined, whole);
      EXPECT_LT(state.size(), 500U);
    }
  }
}

TEST(Loader, StateOfAnotherOrderIsRefused) {
  const TestSet data = make_dataset("refuse", {40}, 1);
  const TestSet other = make_dataset("refuse-other", {41}, 1);
  const std::string state = *make(options_for(data, 4))->state();
  LoaderOptions options = options_for(data, 4);
  options.order.seed = 4;
  EXPECT_THAT(make(options)->load_state(state).error().to_string(), HasSubstr("seed is 3 in the state and 4 here"));
  EXPECT_THAT(make(options_for(other, 4))->load_state(state).error().to_string(), HasSubstr("the dataset is"));
  EXPECT_EQ(make(options_for(data, 4))->load_state("{}").error().code(), ErrorCode::kInvalidArgument);
}

TEST(Loader, JsonIdsAndMissingIndexesGiveTheSameBatches) {
  const TestSet npy = make_dataset("same-npy", {30, 31}, 5);
  const TestSet json = make_dataset("same-json", {30, 31}, 5, /*json=*/true);
  const TestSet foreign = make_dataset("same-foreign", {30, 31}, 5, /*json=*/false, /*with_index=*/false);
  const Steps expected = run(options_for(npy, 4), 1);
  EXPECT_EQ(run(options_for(json, 4), 1), expected);
  EXPECT_EQ(run(options_for(foreign, 4), 1), expected);
}

TEST(Loader, UnshuffledIsTheOrderOfTheFiles) {
  const TestSet data = make_dataset("unshuffled", {20, 30}, 5);
  LoaderOptions options = options_for(data, 5, 8);
  options.order.shuffle = false;
  auto loader = make(options);
  size_t sample = 0;
  while (const auto batch = take(*loader)) {
    for (int64_t r = 0; r < batch->rows; ++r, ++sample) {
      const auto& ids = data.samples[sample];
      for (size_t t = 0; t < 8; ++t) ASSERT_EQ(row_of(*batch, 0, r)[t], t < ids.size() ? ids[t] : 0);
    }
  }
  EXPECT_EQ(sample, 50U);
}

TEST(Loader, ShufflesDifferentlyInEveryEpoch) {
  const TestSet data = make_dataset("epochs", {200, 200}, 5);
  LoaderOptions options = options_for(data, 400);
  options.epochs = 2;
  auto loader = make(options);
  const auto first = take(*loader), second = take(*loader);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->epoch, 1U);
  int64_t same = 0;
  for (int64_t r = 0; r < 400; ++r) same += row_of(*first, 0, r) == row_of(*second, 0, r);
  EXPECT_LT(same, 60);
}

TEST(Loader, DamageIsAnErrorAndTheStateStaysBeforeIt) {
  const TestSet data = make_dataset("damage", {40, 40}, 9);
  const Location shard = data.shard(1);
  std::string tar = *read_object(*shard.storage, shard.key);
  tar[tar.size() / 2] = static_cast<char>(tar[tar.size() / 2] ^ 1);
  ASSERT_TRUE(write_object(*shard.storage, shard.key, tar));
  LoaderOptions options = options_for(data, 4);
  options.order.shuffle = false;
  options.order.window_samples = 4;
  auto loader = make(options);
  int64_t batches = 0;
  for (;; ++batches) {
    const std::string before = *loader->state();
    auto batch = loader->next();
    if (batch) {
      ASSERT_TRUE(*batch);
      continue;
    }
    EXPECT_EQ(batch.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(batch.error().to_string(), HasSubstr("00001.tar"));
    EXPECT_EQ(*loader->state(), before);
    EXPECT_EQ(loader->next().error().code(), ErrorCode::kCorruption);
    break;
  }
  EXPECT_GE(batches, 10) << "batches before the damaged block are delivered";
}

TEST(Loader, AShardCutShortIsAnErrorAtOnce) {
  const TestSet data = make_dataset("cut", {40, 40}, 9);
  const Location shard = data.shard(0);
  std::string tar = *read_object(*shard.storage, shard.key);
  ASSERT_TRUE(write_object(*shard.storage, shard.key, tar.substr(0, tar.size() - 1024)));
  EXPECT_EQ(make(options_for(data, 4))->next().error().code(), ErrorCode::kCorruption);
}

TEST(Loader, KeptBatchesStayAsTheyWereAndNothingBlocks) {
  const TestSet data = make_dataset("kept", {300}, 2);
  LoaderOptions options = options_for(data, 2, 512);
  options.memory_bytes = 1 << 20;
  auto loader = make(options);
  std::vector<Batch> kept;
  std::vector<std::vector<int64_t>> rows;
  while (auto batch = take(*loader)) {
    rows.push_back(row_of(*batch, 0, 0));
    kept.push_back(std::move(*batch));
  }
  EXPECT_EQ(kept.size(), 150U);
  EXPECT_GT(loader->metrics().count(Metric::kBatchCopies), 0);
  loader.reset();
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(row_of(kept[i], 0, 0), rows[i]);
}

TEST(Loader, TooLittleMemorySaysHowMuchIsNeeded) {
  const TestSet data = make_dataset("memory", {300}, 2);
  LoaderOptions options = options_for(data, 64, 512);
  options.memory_bytes = 100 << 10;
  const auto batch = make(options)->next();
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(batch.error().sys_errno(), ENOMEM);
  EXPECT_THAT(batch.error().to_string(), HasSubstr("memory_bytes"));
}

TEST(Loader, BadOptionsAndMissingShardsAreNamed) {
  const TestSet data = make_dataset("bad", {10}, 2);
  LoaderOptions both = options_for(data, 4);
  both.batch_size = 2;
  EXPECT_EQ(Loader::create(both).error().code(), ErrorCode::kInvalidArgument);
  LoaderOptions rank = options_for(data, 4);
  rank.rank = 1;
  EXPECT_THAT(Loader::create(rank).error().to_string(), HasSubstr("rank 1 of 1"));
  LoaderOptions missing = options_for(data, 4);
  missing.shards = {"mem://bad/{00000..00001}.tar"};
  const auto batch = make(missing)->next();
  EXPECT_EQ(batch.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(batch.error().to_string(), HasSubstr("00001.tar"));
  LoaderOptions large = options_for(data, 11);
  EXPECT_THAT(make(large)->next().error().to_string(), HasSubstr("drop_last"));
}

TEST(Loader, PassesFollowEachOther) {
  const TestSet data = make_dataset("passes", {40, 45}, 2);
  for (const Collate collate : {Collate::kPad, Collate::kPack}) {
    LoaderOptions options = options_for(data, 6);
    options.collate = collate;
    options.epochs = 4;
    const Steps expected = run(options, 1);
    options.epochs = 2;
    auto loader = make(options);
    Steps steps;
    for (uint64_t number = 0; number < 2; ++number) {
      EXPECT_EQ(loader->pass()->number, number);
      EXPECT_FALSE(loader->pass()->over);
      const size_t before = steps.size();
      while (const auto batch = take(*loader)) add_rows(*batch, steps.emplace_back());
      EXPECT_FALSE(take(*loader)) << "the end of a pass stays one";
      EXPECT_EQ(static_cast<int64_t>(steps.size() - before), *loader->pass_batches(number));
      EXPECT_TRUE(loader->pass()->over);
      const std::string end = *loader->state();
      auto other = make(options);
      ASSERT_TRUE(other->load_state(end));
      EXPECT_TRUE(other->pass()->over);
      EXPECT_FALSE(take(*other));
      ASSERT_TRUE(loader->start_pass(number + 1));
    }
    EXPECT_EQ(steps, expected);
    ASSERT_TRUE(loader->start_pass(0));
    std::multiset<std::vector<int64_t>> again;
    add_rows(*take(*loader), again);
    EXPECT_EQ(again, expected[0]);
  }
  LoaderOptions endless = options_for(data, 6);
  endless.epochs = 0;
  EXPECT_EQ(make(endless)->pass().error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(make(endless)->start_pass(1).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Loader, StridesShareAPassOut) {
  const TestSet data = make_dataset("strides", {40, 45}, 2);
  for (const bool drop_last : {true, false}) {
    LoaderOptions options = options_for(data, 6);
    options.drop_last = drop_last;
    options.epochs = 2;
    auto whole = make(options);
    ASSERT_TRUE(take(*whole));
    const std::string state = *whole->state();
    Steps expected;
    while (const auto batch = take(*whole)) add_rows(*batch, expected.emplace_back());
    std::vector<std::unique_ptr<Loader>> parts;
    for (int64_t i = 0; i < 3; ++i) {
      options.first_step = i;
      options.step_stride = 3;
      parts.push_back(make(options));
      ASSERT_TRUE(parts.back()->load_state(state));
    }
    Steps joined;
    for (size_t turn = 0;; ++turn) {
      const auto batch = take(*parts[turn % 3]);
      if (!batch) break;
      add_rows(*batch, joined.emplace_back());
    }
    EXPECT_EQ(joined, expected);
    for (auto& part : parts) EXPECT_FALSE(take(*part));
  }
}

TEST(Loader, ABatchSaysTheStateBehindIt) {
  const TestSet data = make_dataset("behind", {40, 45}, 2);
  LoaderOptions options = options_for(data, 6);
  options.epochs = 2;
  auto loader = make(options);
  while (const auto batch = take(*loader)) {
    EXPECT_EQ(*loader->state_behind(batch->epoch, batch->next_position), *loader->state());
  }
}

TEST(Loader, FirstCallsOfManyThreadsOpenTheDatasetOnce) {
  const TestSet data = make_dataset("first-calls", {30, 20}, 2);
  LoaderOptions options = options_for(data, 5);
  for (int round = 0; round < rounds(30); ++round) {
    auto loader = make(options);
    std::vector<Thread> threads;
    std::atomic<int64_t> batches = 0;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back("consumer", [&] {
        while (take(*loader)) ++batches;
      });
    }
    threads.emplace_back("units", [&] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(*loader->epoch_units(), 50);
    });
    threads.emplace_back("state", [&] { EXPECT_TRUE(loader->state()); });
    threads.emplace_back("pass", [&] { EXPECT_EQ(*loader->pass_batches(loader->pass()->number), 10); });
    threads.clear();
    EXPECT_EQ(batches, 10) << "each batch is given to one thread";
  }
}

TEST(Loader, AStateMayBeLoadedWhileAnotherThreadWaits) {
  const TestSet data = make_dataset("move", {30, 20}, 2);
  LoaderOptions options = options_for(data, 5);
  options.epochs = 0;
  auto loader = make(options);
  const std::string start = *loader->state();
  std::atomic<bool> done = false;
  std::vector<Thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back("consumer", [&] {
      while (!done) ASSERT_TRUE(take(*loader));
    });
  }
  for (int round = 0; round < rounds(60); ++round) {
    ASSERT_TRUE(loader->load_state(start));
    ASSERT_TRUE(loader->epoch_units());
  }
  done = true;
}

TEST(Loader, TwoTokenizersInOneLoaderAreRefused) {
  const Hash128 one{1, 2}, two{3, 4};
  const TestSet first = make_dataset("tokenizer-one", {10}, 2, false, true, one);
  const TestSet second = make_dataset("tokenizer-two", {10}, 2, false, true, two);
  const TestSet unknown = make_dataset("tokenizer-unknown", {10}, 2);
  LoaderOptions options = options_for(first, 4);
  options.shards = {first.url, second.url};
  const auto both = make(options)->next();
  EXPECT_EQ(both.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(both.error().to_string(), AllOf(HasSubstr(first.url), HasSubstr(second.url), HasSubstr(to_hex(two))));
  options.shards = {first.url, unknown.url};
  EXPECT_TRUE(make(options)->next());
  options.shards = {first.url};
  options.tokenizer_hash = one;
  EXPECT_TRUE(make(options)->next());
  options.tokenizer_hash = two;
  EXPECT_THAT(make(options)->next().error().to_string(), HasSubstr("the loader was given " + to_hex(two)));
}

TEST(Loader, AnIdOutsideTheVocabularyIsNamed) {
  const TestSet data = make_dataset("vocabulary", {10}, 2);  // ids up to 9,039
  LoaderOptions options = options_for(data, 10);
  options.vocab_size = 10000;
  EXPECT_TRUE(make(options)->next());
  options.vocab_size = 5000;
  const auto batch = make(options)->next();
  EXPECT_EQ(batch.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(batch.error().to_string(), HasSubstr("vocab_size is 5000"));
}

TEST(Loader, AGlobalBatchIsAMultipleOfTheRanks) {
  const TestSet data = make_dataset("uneven", {10}, 2);
  LoaderOptions options = options_for(data, 8);
  options.world_size = 3;
  EXPECT_THAT(Loader::create(options).error().to_string(),
              AllOf(HasSubstr("choose 6 or 9"), HasSubstr("uneven_ranks")));
  options.uneven_ranks = true;
  EXPECT_TRUE(Loader::create(options));
}

TEST(Loader, CloseEndsItAndADeadlinePasses) {
  const TestSet data = make_dataset("close", {100}, 2);
  auto loader = make(options_for(data, 4));
  ASSERT_TRUE(take(*loader));
  loader->close();
  EXPECT_EQ(loader->next().error().code(), ErrorCode::kCancelled);
}

TEST(Loader, CloseFromAnotherThreadEndsAWait) {
  const TestSet data = make_dataset("close-thread", {100}, 2);
  for (int round = 0; round < 20; ++round) {
    LoaderOptions options = options_for(data, 4);
    options.epochs = 0;
    auto loader = make(options);
    ASSERT_TRUE(take(*loader));
    Thread closer("close", [&] { loader->close(); });
    for (;;) {
      const auto batch = loader->next();
      if (batch) continue;
      EXPECT_EQ(batch.error().code(), ErrorCode::kCancelled);
      break;
    }
  }
}

TEST(Loader, AChildGoesOnFromTheStateOfItsParent) {
  const TestSet data = make_dataset("fork", {100, 20}, 2);
  auto loader = make(options_for(data, 4));
  ASSERT_TRUE(take(*loader));
  const std::string state = *loader->state();
  auto reference = make(options_for(data, 4));
  ASSERT_TRUE(reference->load_state(state));
  const auto expected = take(*reference);
  ASSERT_TRUE(expected);
  const pid_t child = fork();
  if (child == 0) {
    const auto batch = loader->next();
    const bool same = batch && *batch && row_of(**batch, 0, 0) == row_of(*expected, 0, 0);
    loader.reset();
    _exit(same ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(row_of(*take(*loader), 0, 0), row_of(*expected, 0, 0)) << "the parent is not disturbed";
}

TEST(Loader, StressWithManyThreadsAndResets) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const TestSet data = make_dataset("stress", {64, 65, 66, 67, 68, 69}, seed);
  LoaderOptions options = options_for(data, 8);
  options.threads = 6;
  options.epochs = 0;
  options.order.lanes = 4;
  options.order.window_samples = 8;
  options.order.block_windows = 2;
  auto loader = make(options);
  std::mt19937_64 random(seed);
  std::map<std::string, std::vector<int64_t>> by_state;
  std::vector<std::string> states;
  for (int i = 0; i < 300; ++i) {
    const std::string state = *loader->state();
    const auto batch = take(*loader);
    ASSERT_TRUE(batch);
    const auto row = row_of(*batch, 0, 0);
    if (const auto known = by_state.find(state); known != by_state.end()) {
      ASSERT_EQ(known->second, row) << state;
    }
    by_state[state] = row;
    states.push_back(state);
    if (random() % 10 == 0) {
      ASSERT_TRUE(loader->load_state(states[random() % states.size()]));
    }
  }
}

}  // namespace
}  // namespace millrace::loader
