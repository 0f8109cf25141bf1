// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "millrace/base/testing.h"

namespace millrace::order {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Mixture::UnitsOf fixed(std::vector<int64_t> units) {
  return [units = std::move(units)](int64_t source, uint64_t) -> Result<int64_t> {
    return units[static_cast<size_t>(source)];
  };
}

Mixture mixture(std::vector<MixPhase> phases, MixEnd end, std::vector<int64_t> units) {
  return Mixture::create(Mixture::start(std::move(phases), end).value(), fixed(std::move(units))).value();
}

std::vector<int64_t> counts(const std::vector<MixRange>& step, size_t sources) {
  std::vector<int64_t> counts(sources);
  for (const MixRange& range : step) counts[static_cast<size_t>(range.source)] += range.count;
  return counts;
}

TEST(Mixture, DrawsByWeightFromTheFirstStepOn) {
  Mixture mix = mixture({{0, {3, 1}}}, MixEnd::kEndless, {1000, 1000});
  EXPECT_THAT(mix.next_step(4).value(), ElementsAre(MixRange{0, 0, 0, 3}, MixRange{1, 0, 0, 1}));
  EXPECT_THAT(mix.next_step(2).value(), ElementsAre(MixRange{0, 0, 3, 2}));
  EXPECT_THAT(mix.next_step(2).value(), ElementsAre(MixRange{0, 0, 5, 1}, MixRange{1, 0, 1, 1}));
}

TEST(Mixture, StaysCloseToAnyWeights) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    const size_t sources = 1 + random() % 12;
    std::vector<double> weights;
    double sum = 0;
    for (size_t i = 0; i < sources; ++i) sum += weights.emplace_back(std::ldexp(1.0, -static_cast<int>(random() % 10)));
    Mixture mix = mixture({{0, weights}}, MixEnd::kEndless, std::vector<int64_t>(sources, 17));
    std::vector<int64_t> drawn(sources);
    int64_t total = 0;
    for (int step = 0; step < 200; ++step) {
      const int64_t batch = 1 + random() % 64;
      const auto more = counts(mix.next_step(batch).value(), sources);
      total += batch;
      for (size_t i = 0; i < sources; ++i) {
        drawn[i] += more[i];
        ASSERT_NEAR(static_cast<double>(drawn[i]), weights[i] / sum * static_cast<double>(total),
                    static_cast<double>(sources))
            << "seed " << seed << ", dataset " << i << " of " << sources << " after " << total;
      }
    }
  }
}

// The numbers are those of tests/python/order_reference.py (tests/python/test_order.py).
TEST(Mixture, DrawsWhatTheReferenceDraws) {
  const std::vector<double> weights = {0.1, 0.7, 1e-3, 0, 2.5};
  Mixture mix = mixture({{0, weights}, {40, {1, 1, 1, 1, 1}}}, MixEnd::kEndless, {9999, 9999, 9999, 9999, 9999});
  uint64_t fingerprint = 0;
  for (int step = 0; step < 100; ++step) {
    for (const int64_t count : counts(mix.next_step(37).value(), 5)) {
      fingerprint = fingerprint * 1'000'003 + static_cast<uint64_t>(count);
    }
  }
  EXPECT_EQ(fingerprint, 299414958924589420ULL);
}

TEST(Mixture, BeginsADatasetAgainWithinAStep) {
  Mixture mix = mixture({{0, {1, 1}}}, MixEnd::kEndless, {3, 100});
  EXPECT_THAT(mix.next_step(10).value(), ElementsAre(MixRange{0, 0, 0, 3}, MixRange{0, 1, 0, 2}, MixRange{1, 0, 0, 5}));
  EXPECT_EQ(mix.state().cursors[0].epoch, 1U);
  EXPECT_EQ(mix.state().cursors[0].position, 2);
}

TEST(Mixture, EndsBeforeTheStepThatWouldRepeatADataset) {
  Mixture mix = mixture({{0, {1, 1}}}, MixEnd::kFirstEmpty, {4, 100});
  EXPECT_EQ(mix.next_step(4).value().size(), 2U);
  EXPECT_EQ(mix.next_step(4).value().size(), 2U);  // the whole of dataset 0 is used
  EXPECT_THAT(mix.next_step(4).value(), IsEmpty());
  EXPECT_THAT(mix.next_step(4).value(), IsEmpty());
  EXPECT_EQ(mix.state().step, 2);
}

TEST(Mixture, EndsWhenEveryDatasetHasEnded) {
  Mixture mix = mixture({{0, {1, 1, 0}}}, MixEnd::kAllEmpty, {2, 6, 5});
  int64_t steps = 0;
  while (!mix.next_step(4).value().empty()) ++steps;
  EXPECT_EQ(steps,
            3);  // dataset 1 needs 6 units, 2 a step; dataset 0 goes through three epochs, dataset 2 has no weight
  EXPECT_EQ(mix.state().cursors[0].epoch, 3U);
  EXPECT_EQ(mix.state().cursors[1].epoch, 1U);
}

// Weights 3 and 1 draw 0 0 1 0.
TEST(Mixture, TheLastStepEndsBeforeTheDrawThatAnEndedDatasetLacks) {
  Mixture mix = mixture({{0, {3, 1}}}, MixEnd::kFirstEmpty, {7, 10});
  EXPECT_THAT(counts(mix.next_step(4, true).value(), 2), ElementsAre(3, 1));
  Mixture whole = mix;
  EXPECT_THAT(counts(mix.next_step(4, true).value(), 2), ElementsAre(3, 1));
  EXPECT_THAT(counts(mix.next_step(4, true).value(), 2), ElementsAre(1, 0));
  EXPECT_EQ(mix.state().step, 3);
  EXPECT_TRUE(mix.next_step(4, true).value().empty());
  EXPECT_TRUE(Mixture::create(mix.state(), fixed({7, 10}))->next_step(4, true).value().empty());
  EXPECT_EQ(whole.next_step(4).value().size(), 2U);
  EXPECT_TRUE(whole.next_step(4).value().empty());
}

TEST(Mixture, TheLastStepEndsWhenAllHaveEnded) {
  Mixture mix = mixture({{0, {1, 1}}}, MixEnd::kAllEmpty, {2, 5});
  EXPECT_THAT(counts(mix.next_step(4, true).value(), 2), ElementsAre(2, 2));
  EXPECT_THAT(counts(mix.next_step(4, true).value(), 2), ElementsAre(2, 2));
  EXPECT_THAT(counts(mix.next_step(4, true).value(), 2), ElementsAre(1, 1));
  EXPECT_TRUE(mix.next_step(4, true).value().empty());
}

TEST(Mixture, WhatAPassHoldsDoesNotDependOnTheBatch) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> sizes(1 + random() % 4);
    std::vector<double> weights;
    for (int64_t& size : sizes) {
      size = 1 + random() % 40;
      weights.push_back(1 + random() % 5);
    }
    const MixEnd end = random() % 2 == 0 ? MixEnd::kFirstEmpty : MixEnd::kAllEmpty;
    std::vector<std::set<std::tuple<int64_t, uint64_t, int64_t>>> passes;
    for (const int64_t batch : {1, 2, 7, 1000}) {
      Mixture mix = mixture({{0, weights}}, end, sizes);
      auto& units = passes.emplace_back();
      int64_t last = batch;
      for (auto step = mix.next_step(batch, true).value(); !step.empty(); step = mix.next_step(batch, true).value()) {
        EXPECT_EQ(last, batch) << "only the last step is smaller";
        last = 0;
        for (const MixRange& range : step) {
          last += range.count;
          for (int64_t i = 0; i < range.count; ++i) units.insert({range.source, range.epoch, range.begin + i});
        }
        for (const int64_t world : {2, 3}) EXPECT_EQ(units_before(step, world, world), last);
      }
    }
    for (const auto& units : passes) EXPECT_EQ(units, passes[0]) << "seed " << seed << ", round " << round;
    EXPECT_FALSE(passes[0].empty());
  }
}

TEST(Mixture, ChangesWeightsByScheduleAndByCall) {
  Mixture mix = mixture({{0, {1, 0}}, {2, {0, 1}}}, MixEnd::kEndless, {100, 100});
  EXPECT_THAT(counts(mix.next_step(4).value(), 2), ElementsAre(4, 0));
  EXPECT_THAT(counts(mix.next_step(4).value(), 2), ElementsAre(4, 0));
  EXPECT_THAT(counts(mix.next_step(4).value(), 2), ElementsAre(0, 4));
  ASSERT_TRUE(mix.set_weights({1, 1}));
  EXPECT_THAT(counts(mix.next_step(4).value(), 2), ElementsAre(2, 2));
  EXPECT_EQ(mix.state().phases.size(), 3U);
  EXPECT_EQ(mix.state().phases.back(), (MixPhase{3, {1, 1}}));
}

TEST(Mixture, GoesOnFromAStateAsIfItHadNotStopped) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  Mixture whole = mixture({{0, {5, 2, 1}}, {9, {1, 1, 1}}}, MixEnd::kEndless, {40, 7, 11});
  std::optional<Mixture> parts = whole;
  for (int step = 0; step < 60; ++step) {
    const int64_t batch = 1 + random() % 32;
    ASSERT_EQ(whole.next_step(batch).value(), parts->next_step(batch).value()) << "seed " << seed << ", step " << step;
    if (random() % 3 == 0) parts = Mixture::create(parts->state(), fixed({40, 7, 11})).value();
  }
}

TEST(Mixture, RefusesWhatMakesNoSense) {
  const auto start = [](std::vector<MixPhase> phases) {
    const auto state = Mixture::start(std::move(phases), MixEnd::kEndless);
    return state ? std::string() : state.error().message();
  };
  EXPECT_THAT(start({}), HasSubstr("no dataset"));
  EXPECT_THAT(start({{1, {1}}}), HasSubstr("step 0"));
  EXPECT_THAT(start({{0, {0, 0}}}), HasSubstr("more than 0"));
  EXPECT_THAT(start({{0, {1, -1}}}), HasSubstr("a weight of -1"));
  EXPECT_THAT(start({{0, {1, NAN}}}), HasSubstr("a weight of nan"));
  EXPECT_THAT(start({{0, {1, 1}}, {5, {1}}}), HasSubstr("1 weights for 2 datasets"));
  EXPECT_THAT(start({{0, {1}}, {5, {1}}, {5, {2}}}), HasSubstr("rising step"));

  MixState state = Mixture::start({{0, {1, 1}}}, MixEnd::kEndless).value();
  state.cursors[0].debt = 1;
  EXPECT_THAT(Mixture::create(state, fixed({1, 1})).error().message(), HasSubstr("add up to 0"));
  state.cursors[0] = {.epoch = 0, .position = 5};
  Mixture behind = Mixture::create(state, fixed({5, 5})).value();
  EXPECT_THAT(behind.next_step(2).error().message(), HasSubstr("position 5 does not exist"));
  Mixture empty = mixture({{0, {1, 1}}}, MixEnd::kEndless, {5, 0});
  EXPECT_THAT(empty.next_step(2).error().message(), HasSubstr("dataset 1 has no samples"));
}

// Orders of datasets of different sizes.
class Orders {
 public:
  const EpochOrder& operator()(int64_t source, uint64_t epoch) {
    const auto [found, is_new] = orders_.try_emplace({source, epoch});
    if (is_new) {
      const std::vector<int64_t> shards(static_cast<size_t>(2 + source), 5 + 3 * source);
      auto windows = std::make_shared<const WindowTable>(WindowTable::create(shards, 3, false).value());
      found->second =
          EpochOrder::create(std::move(windows),
                             {.seed = 5, .shuffle = true, .lanes = 2, .window_samples = 3, .block_windows = 2}, epoch)
              .value();
    }
    return *found->second;
  }
  Mixture::UnitsOf units() {
    return [this](int64_t source, uint64_t epoch) -> Result<int64_t> { return (*this)(source, epoch).units(); };
  }

 private:
  std::map<std::pair<int64_t, uint64_t>, std::optional<EpochOrder>> orders_;
};

TEST(Mixture, RanksTogetherReadEachUnitOnceAtEveryWorldSize) {
  Orders orders;
  const auto order_of = [&](int64_t source, uint64_t epoch) -> const EpochOrder& { return orders(source, epoch); };
  Mixture mix = Mixture::create(Mixture::start({{0, {4, 2, 1}}}, MixEnd::kEndless).value(), orders.units()).value();
  for (int i = 0; i < 30; ++i) {
    const auto step = mix.next_step(24).value();
    for (const int64_t world : {1, 2, 3, 5, 8, 24, 64}) {
      std::set<std::tuple<int64_t, uint64_t, int64_t>> seen;
      for (int64_t rank = 0; rank < world; ++rank) {
        const auto share = rank_share(step, order_of, rank, world);
        if (24 % world == 0) {
          ASSERT_EQ(std::ssize(share), 24 / world);
        }
        for (const MixUnit& unit : share) {
          ASSERT_TRUE(seen.emplace(unit.source, unit.epoch, unit.position).second) << "world " << world;
        }
      }
      ASSERT_EQ(seen.size(), 24U) << "world " << world;
      for (const MixRange& range : step) {
        for (int64_t p = range.begin; p < range.begin + range.count; ++p) {
          ASSERT_TRUE(seen.contains({range.source, range.epoch, p}));
        }
      }
    }
  }
}

TEST(Mixture, EachRankGetsTheMixtureItself) {
  Orders orders;
  const auto order_of = [&](int64_t source, uint64_t epoch) -> const EpochOrder& { return orders(source, epoch); };
  const std::vector<MixRange> step = {{0, 0, 0, 8}, {1, 0, 0, 5}, {2, 0, 0, 3}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    std::vector<int64_t> of(3);
    for (const MixUnit& unit : rank_share(step, order_of, rank, 4)) ++of[static_cast<size_t>(unit.source)];
    EXPECT_EQ(of[0], 2);
    EXPECT_EQ(of[1] + of[2], 2);
    EXPECT_GE(of[1], 1);
  }
}

}  // namespace
}  // namespace millrace::order
