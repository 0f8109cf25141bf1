// SPDX-License-Identifier: Apache-2.0
// Loaders of several datasets, held against the functions of order/mixture.h.

#include "millrace/order/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/testing/test_sets.h"

namespace millrace::loader {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct MixedSets {
  std::vector<TestSet> sets;
  LoaderOptions options;
};

MixedSets mixed(const std::string& name, const std::vector<std::vector<int>>& shards, std::vector<double> weights,
                uint64_t seed) {
  MixedSets all;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto first_number = static_cast<uint32_t>(i * 100'000);
    all.sets.push_back(make_dataset(fmt::format("{}-{}", name, i), shards[i], seed + i, false, true, {}, first_number));
    all.options.sources.push_back({{all.sets.back().url}, ""});
  }
  LoaderOptions& options = all.options;
  options.weights = {{0, std::move(weights)}};
  options.global_batch_size = 12;
  options.seq_len = 16;
  options.order.seed = seed;
  options.threads = 2;
  options.memory_bytes = 64 << 20;
  return all;
}

std::vector<int64_t> padded(const std::vector<uint32_t>& ids, int64_t seq_len) {
  std::vector<int64_t> row(ids.begin(), ids.begin() + std::min(seq_len, std::ssize(ids)));
  row.resize(static_cast<size_t>(seq_len), 0);
  return row;
}

// What the first `steps` steps of pass `pass` train on, by the pure functions.
Steps expected_steps(const MixedSets& all, uint64_t pass, int64_t steps) {
  std::vector<std::shared_ptr<const order::WindowTable>> tables;
  std::vector<order::OrderOptions> orders;
  std::vector<int64_t> sizes;
  for (const TestSet& set : all.sets) {
    std::vector<int64_t> shard_samples;
    for (const size_t n : set.shard_sizes) shard_samples.push_back(static_cast<int64_t>(n));
    const auto samples = static_cast<int64_t>(set.samples.size());
    int64_t tokens = 0;
    for (const auto& ids : set.samples) tokens += std::ssize(ids);
    orders.push_back(order::resolve_options(all.options.order, samples, tokens));
    tables.push_back(std::make_shared<const order::WindowTable>(
        order::WindowTable::create(shard_samples, orders.back().window_samples, false).value()));
    sizes.push_back(samples);
  }
  auto mixture = order::Mixture::create(
                     order::Mixture::start(all.options.weights, all.options.mix_end).value(),
                     [&](int64_t source, uint64_t) -> Result<int64_t> { return sizes[static_cast<size_t>(source)]; })
                     .value();
  Steps result;
  for (int64_t s = 0; s < steps; ++s) {
    const auto ranges = mixture.next_step(all.options.global_batch_size).value();
    if (ranges.empty()) break;
    auto& rows = result.emplace_back();
    for (const order::MixRange& range : ranges) {
      const auto source = static_cast<size_t>(range.source);
      const TestSet& set = all.sets[source];
      const auto order =
          order::EpochOrder::create(tables[source], orders[source], order::order_epoch(pass, range.epoch)).value();
      for (int64_t position = range.begin; position < range.begin + range.count; ++position) {
        const auto place = order.place(position);
        int64_t at = order.permutation(place.lane, place.block)[static_cast<size_t>(place.index)];
        for (const order::Window& window : order.block(place.lane, place.block).windows) {
          if (at < window.samples) {
            const size_t first = std::accumulate(set.shard_sizes.begin(), set.shard_sizes.begin() + window.shard,
                                                 static_cast<size_t>(window.first));
            rows.insert(padded(set.samples[first + static_cast<size_t>(at)], all.options.seq_len));
            break;
          }
          at -= window.samples;
        }
      }
    }
  }
  return result;
}

TEST(MixtureLoader, GivesWhatTheFunctionsSayAtEveryWorldSize) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const MixedSets all = mixed("mix-functions", {{40, 31}, {5}, {120, 1, 77}}, {3, 1, 0.5}, seed);
  const Steps expected = expected_steps(all, 0, 60);
  ASSERT_EQ(expected.size(), 60U);
  for (const int64_t world_size : {1, 2, 3, 5, 64}) {
    EXPECT_TRUE(run(all.options, world_size, 60) == expected) << world_size << " ranks";
  }
}

TEST(MixtureLoader, ResumesExactlyWithOtherRanksPackedOrNot) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (const Collate collate : {Collate::kPad, Collate::kPack}) {
    for (int round = 0; round < 3; ++round) {
      MixedSets all = mixed(fmt::format("mix-resume-{}-{}", static_cast<int>(collate), round), {{60, 20}, {33}, {200}},
                            {1, 2, 4}, seed + static_cast<uint64_t>(round));
      all.options.collate = collate;
      all.options.weights.push_back({7, {4, 0, 1}});
      const Steps whole = run(all.options, 2, 30);
      const auto cut = static_cast<int64_t>(random() % 29 + 1);
      const auto before = static_cast<int64_t>(random() % 4 + 1), after = static_cast<int64_t>(random() % 7 + 1);
      std::string state;
      Steps joined = run(all.options, before, cut, {}, &state);
      const Steps rest = run(all.options, after, 30 - cut, state);
      joined.insert(joined.end(), rest.begin(), rest.end());
      EXPECT_TRUE(joined == whole) << before << " ranks, then " << after << ", cut at " << cut;
    }
  }
}

TEST(MixtureLoader, EndsByItsRuleAndGivesOtherEpochsInTheNextPass) {
  MixedSets all = mixed("mix-ends", {{24}, {50}}, {1, 1}, 5);
  for (const auto end : {order::MixEnd::kFirstEmpty, order::MixEnd::kAllEmpty}) {
    all.options.mix_end = end;
    auto loader = make(all.options);
    for (uint64_t pass = 0; pass < 2; ++pass) {
      const Steps expected = expected_steps(all, pass, 1000);
      EXPECT_EQ(std::ssize(expected), end == order::MixEnd::kFirstEmpty ? 4 : 9);
      EXPECT_EQ(*loader->pass_batches(pass), std::ssize(expected));
      if (pass > 0) {
        ASSERT_TRUE(loader->start_pass(pass));
      }
      EXPECT_FALSE(loader->pass()->over);
      Steps steps;
      while (const auto batch = take(*loader)) add_rows(*batch, steps.emplace_back());
      EXPECT_TRUE(steps == expected);
      EXPECT_TRUE(loader->pass()->over);
      EXPECT_EQ(loader->pass()->number, pass);
    }
  }
  all.options.mix_end = order::MixEnd::kEndless;
  EXPECT_THAT(make(all.options)->pass().error().to_string(), HasSubstr("a stop rule"));
}

TEST(MixtureLoader, WeightsSetOnTheWayArePartOfTheState) {
  MixedSets all = mixed("mix-call", {{100}, {100}}, {1, 0}, 9);
  auto loader = make(all.options);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(take(*loader)->sources, Each(0));
  EXPECT_THAT(loader->set_weights({1, 2, 3}).error().to_string(), HasSubstr("3 weights for 2 datasets"));
  ASSERT_TRUE(loader->set_weights({0, 1}));
  const std::string state = *loader->state();
  std::multiset<std::vector<int64_t>> rows, again;
  for (int i = 0; i < 2; ++i) {
    const auto batch = take(*loader);
    EXPECT_THAT(batch->sources, Each(1));
    add_rows(*batch, rows);
  }
  auto other = make(all.options);
  ASSERT_TRUE(other->load_state(state));
  for (int i = 0; i < 2; ++i) add_rows(*take(*other), again);
  EXPECT_EQ(again, rows);
}

TEST(MixtureLoader, KnowsTheStateBehindEachBatch) {
  MixedSets all = mixed("mix-behind", {{30}, {41}, {7}}, {2, 1, 1}, 11);
  auto loader = make(all.options), observer = make(all.options);
  std::vector<std::string> states;
  std::vector<Batch> batches;
  for (int i = 0; i < 20; ++i) {
    batches.push_back(*take(*loader));
    states.push_back(*loader->state());
  }
  for (const size_t i : {4U, 5U, 19U, 0U, 12U}) {
    EXPECT_EQ(*observer->state_behind(batches[i].epoch, batches[i].next_position), states[i]);
    EXPECT_EQ(*loader->state_behind(batches[i].epoch, batches[i].next_position), states[i]);
  }
}

TEST(MixtureLoader, LoadersShareASequenceByStride) {
  MixedSets all = mixed("mix-stride", {{30}, {41}}, {2, 1}, 12);
  all.options.mix_end = order::MixEnd::kAllEmpty;
  const Steps whole = run(all.options, 1);
  Steps joined(whole.size());
  for (int64_t first = 0; first < 3; ++first) {
    LoaderOptions options = all.options;
    options.first_step = first;
    options.step_stride = 3;
    const Steps mine = run(options, 1);
    for (size_t i = 0; i < mine.size(); ++i) joined[static_cast<size_t>(first) + 3 * i] = mine[i];
  }
  EXPECT_TRUE(joined == whole);
}

// Blocks of datasets that are paused, and of lanes that come later, make room.
TEST(MixtureLoader, ManyBegunBlocksFitIntoLittleMemory) {
  std::vector<std::vector<int>> shards(24, {300, 300});
  MixedSets all = mixed("mix-memory", shards, std::vector<double>(24, 1.0), 13);
  all.options.order.lanes = 8;
  all.options.order.window_samples = 16;
  all.options.order.block_windows = 2;
  const Steps roomy = run(all.options, 1, 40);
  all.options.memory_bytes = 256 << 10;
  EXPECT_TRUE(run(all.options, 1, 40) == roomy);
}

TEST(MixtureLoader, RefusesStatesOfOtherOrders) {
  const MixedSets all = mixed("mix-refuse", {{30}, {41}}, {2, 1}, 12);
  auto loader = make(all.options);
  LoaderOptions one = options_for(all.sets[0], 12);
  auto single = make(one);
  EXPECT_THAT(loader->load_state(*single->state()).error().to_string(), HasSubstr("reads a mixture"));
  EXPECT_THAT(single->load_state(*loader->state()).error().to_string(), HasSubstr("reads one dataset"));
  LoaderOptions swapped = all.options;
  std::swap(swapped.sources[0], swapped.sources[1]);
  EXPECT_THAT(make(swapped)->load_state(*loader->state()).error().to_string(),
              AllOf(HasSubstr("dataset 0"), HasSubstr("mix-refuse-1")));
  LoaderOptions seeded = all.options;
  seeded.order.seed = 1;
  EXPECT_THAT(make(seeded)->load_state(*loader->state()).error().to_string(), HasSubstr("seed is 12 in the state"));
  LoaderOptions ends = all.options;
  ends.mix_end = order::MixEnd::kAllEmpty;
  EXPECT_THAT(make(ends)->load_state(*loader->state()).error().to_string(), HasSubstr("stop rule is endless"));
  EXPECT_FALSE(loader->load_state(R"({"format":"millrace.mixture","version":1})"));
}

TEST(MixtureLoader, RefusesDatasetsOfTwoTokenizers) {
  LoaderOptions options = mixed("mix-two", {{3}}, {1}, 1).options;
  const TestSet a = make_dataset("mix-two-a", {5}, 1, false, true, {1, 1});
  const TestSet b = make_dataset("mix-two-b", {5}, 2, false, true, {2, 2});
  options.sources = {{{a.url}, ""}, {{b.url}, ""}};
  options.weights = {{0, {1, 1}}};
  EXPECT_THAT(make(options)->open().error().to_string(),
              AllOf(HasSubstr("mix-two-a was made with the tokenizer"), HasSubstr("mix-two-b")));
  options.epochs = 1;
  EXPECT_THAT(Loader::create(options).error().to_string(), HasSubstr("not by epochs"));
  options.epochs = 0;
  options.sources.pop_back();
  EXPECT_THAT(Loader::create(options).error().to_string(), HasSubstr("2 datasets, 1 were named"));
}

}  // namespace
}  // namespace millrace::loader
