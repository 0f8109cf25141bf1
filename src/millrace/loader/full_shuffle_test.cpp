// SPDX-License-Identifier: Apache-2.0
// One permutation of all samples, at every world size and after every resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/testing.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/testing/test_sets.h"
#include "millrace/order/permutation.h"

namespace millrace::loader {
namespace {

using ::testing::HasSubstr;

LoaderOptions full_options(const TestSet& data, int64_t global_batch) {
  LoaderOptions options = options_for(data, global_batch);
  options.order.full = true;
  options.drop_last = false;
  options.epochs = 2;
  return options;
}

Steps expected_steps(const TestSet& data, const LoaderOptions& options) {
  Steps steps;
  for (uint64_t epoch = 0; epoch < static_cast<uint64_t>(options.epochs); ++epoch) {
    const order::Permutation permutation(std::ssize(data.samples), options.order.seed, epoch);
    for (int64_t i = 0; i < permutation.size(); ++i) {
      if (i % options.global_batch_size == 0) steps.emplace_back();
      const auto& ids = data.samples[static_cast<size_t>(permutation.at(i))];
      std::vector<int64_t> row(ids.begin(), ids.begin() + std::min(options.seq_len, std::ssize(ids)));
      row.resize(static_cast<size_t>(options.seq_len), 0);
      steps.back().insert(std::move(row));
    }
  }
  return steps;
}

TEST(FullShuffle, GivesThePermutationAtEveryWorldSizeAndAfterAResume) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (const bool with_index : {true, false}) {
    const TestSet data = make_dataset(fmt::format("full-{}", with_index), {90, 1, 60, 33}, seed, false, with_index);
    LoaderOptions options = full_options(data, 12);
    options.order.seed = seed;
    const Steps expected = expected_steps(data, options);
    for (const int64_t world : {1, 2, 5, 64}) EXPECT_EQ(run(options, world), expected) << world << " ranks";
    const auto cut = static_cast<int64_t>(random() % expected.size());
    std::string state;
    run(options, 3, cut, {}, &state);
    EXPECT_EQ(run(options, 4, 1 << 30, state), Steps(expected.begin() + cut, expected.end())) << "cut at " << cut;
    LoaderOptions little = options;
    little.threads = 1;
    little.memory_bytes = 4 << 20;
    EXPECT_EQ(run(little, 2), expected);
  }
}

TEST(FullShuffle, ReplacesDamagedSamplesAlike) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const TestSet data = make_dataset("full-damaged", {60, 60, 60}, seed);
  const Location at = data.shard(1);
  const std::string tar = read_object(*at.storage, at.key, 1 << 24).value();
  ASSERT_TRUE(write_object(*at.storage, at.key, tar.substr(0, tar.size() / 2)));  // a third of all samples
  LoaderOptions options = full_options(data, 9);
  options.on_bad = OnBad::kQuarantine;
  const Steps alone = run(options, 1);
  EXPECT_EQ(alone.size(), 40U);
  for (const int64_t world : {2, 3}) EXPECT_EQ(run(options, world), alone);
  const auto loader = make(options);
  while (take(*loader)) {
  }
  EXPECT_EQ(loader->quarantined().value().size(), 120U);
}

TEST(FullShuffle, IsPartOfMixtures) {
  const TestSet a = make_dataset("full-mix-a", {40, 7}, 3),
                b = make_dataset("full-mix-b", {90}, 4, false, true, {}, 1000);
  LoaderOptions options = full_options(a, 8);
  options.epochs = 0;
  options.shards.clear();
  options.sources = {{{a.url}, ""}, {{b.url}, ""}};
  options.weights = {{0, {1, 2}}};
  options.mix_end = order::MixEnd::kFirstEmpty;
  const Steps alone = run(options, 1);
  std::string state;
  run(options, 3, 5, {}, &state);
  EXPECT_EQ(run(options, 2, 1 << 30, state), Steps(alone.begin() + 5, alone.end()));
}

TEST(FullShuffle, NamesItsSamples) {
  const TestSet data = make_dataset("full-named", {40, 30}, 6);
  LoaderOptions options = full_options(data, 10);
  options.pad_id = -1;
  options.seq_len = 64;
  const auto loader = make(options);
  for (int64_t step = 0; step < 7; ++step) {
    const auto batch = take(*loader);
    const auto named = loader->provenance(step).value();
    EXPECT_EQ(rows_named(named[0], std::span(&data, 1), options.seq_len), rows_of(*batch));
  }
}

TEST(FullShuffle, RefusesWhatHasNoSense) {
  const TestSet data = make_dataset("full-refuse", {40}, 6);
  LoaderOptions options = full_options(data, 4);
  for (const Collate collate : {Collate::kPack, Collate::kBestFit}) {
    options.collate = collate;
    EXPECT_THAT(Loader::create(options).error().to_string(), HasSubstr("use shuffle=True"));
  }
  options.collate = Collate::kPad;
  const std::string state = *make(options)->state();
  options.order.full = false;
  EXPECT_THAT(make(options)->load_state(state).error().to_string(),
              HasSubstr("full shuffle is true in the state and false here"));
}

}  // namespace
}  // namespace millrace::loader
