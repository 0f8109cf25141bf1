// SPDX-License-Identifier: Apache-2.0
// Damaged rows give their place to others, the same at every world size and after every resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/testing.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/testing/test_sets.h"

namespace millrace::loader {
namespace {

using ::testing::HasSubstr;

void flip_bit(const Location& at, size_t place) {
  std::string bytes = read_object(*at.storage, at.key, 1 << 24).value();
  bytes[place % bytes.size()] = static_cast<char>(bytes[place % bytes.size()] ^ 4);
  ASSERT_TRUE(write_object(*at.storage, at.key, bytes));
}

void truncate(const Location& at) {
  const std::string bytes = read_object(*at.storage, at.key, 1 << 24).value();
  ASSERT_TRUE(write_object(*at.storage, at.key, bytes.substr(0, bytes.size() / 2)));
}

class Quarantine : public ::testing::Test {
 protected:
  LoaderOptions options_of(const TestSet& data, Collate collate, int64_t epochs = 2) const {
    LoaderOptions options = options_for(data, 6);
    options.collate = collate;
    options.epochs = epochs;
    options.pad_id = -1;
    options.on_bad = OnBad::kQuarantine;
    options.order.seed = seed_;
    return options;
  }
  TestSet damaged_set(const std::string& name, int flips, bool cut_shard) {
    TestSet data = make_dataset(name, {60, 40, 50, 30}, seed_);
    for (int i = 0; i < flips; ++i) flip_bit(data.shard(random_() % 3), random_());
    if (cut_shard) truncate(data.shard(3));
    return data;
  }

  const uint64_t seed_ = test_seed();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("MILLRACE_TEST_SEED={}", seed_)};
  std::mt19937_64 random_{seed_};
};

constexpr Collate kCollates[] = {Collate::kPad, Collate::kPack, Collate::kBestFit};

TEST_F(Quarantine, EveryWorldSizeReadsTheSameInstead) {
  int number = 0;
  for (const Collate collate : kCollates) {
    const TestSet data = damaged_set(fmt::format("quarantine-{}", number), 6, number % 2 == 0);
    ++number;
    const LoaderOptions options = options_of(data, collate);
    const Steps alone = run(options, 1);
    EXPECT_GT(alone.size(), 10u);
    for (const int64_t world : {2, 3, 7, 64}) EXPECT_EQ(run(options, world), alone) << "world size " << world;
    LoaderOptions little = options;
    little.threads = 1;
    little.memory_bytes = 4 << 20;
    EXPECT_EQ(run(little, 2), alone);
  }
}

TEST_F(Quarantine, OnlyDamagedRowsAreReplaced) {
  const TestSet sound = make_dataset("quarantine-sound", {60, 40, 50, 30}, seed_);
  LoaderOptions options = options_of(sound, Collate::kPad);
  const Steps expected = run(options, 2);
  const TestSet data = damaged_set("quarantine-sound", 5, false);  // the same, damaged
  const auto loader = make(options_of(data, Collate::kPad));
  size_t step = 0, replaced = 0;
  while (const auto batch = take(*loader)) {
    std::multiset<std::vector<int64_t>> rows;
    add_rows(*batch, rows);
    std::vector<std::vector<int64_t>> other;
    std::set_difference(rows.begin(), rows.end(), expected[step].begin(), expected[step].end(),
                        std::back_inserter(other));
    replaced += other.size();
    ++step;
  }
  EXPECT_EQ(step, expected.size());
  const auto ledger = loader->quarantined().value();
  EXPECT_LE(replaced, ledger.size()) << "a row may take the place of an equal one";
  EXPECT_LE(ledger.size(), 10u) << "five bits, two epochs";
  for (const auto& unit : ledger) EXPECT_THAT(unit.reason, HasSubstr("quarantine-sound"));
}

TEST_F(Quarantine, AResumeGoesOnTheSameWithTheLedger) {
  for (const Collate collate : kCollates) {
    const TestSet data =
        damaged_set(fmt::format("quarantine-resume-{}", static_cast<int>(collate)), 8, collate == Collate::kPack);
    const LoaderOptions options = options_of(data, collate);
    const Steps whole = run(options, 1);
    for (int round = 0; round < 4; ++round) {
      const auto before = static_cast<int64_t>(random_() % whole.size());
      const auto loader = make(options);
      for (int64_t i = 0; i < before; ++i) take(*loader);
      const std::string state = loader->state().value();
      const auto met = loader->quarantined().value();
      const Steps rest = run(options, 1 + static_cast<int64_t>(random_() % 3), 1 << 30, state);
      EXPECT_EQ(rest, Steps(whole.begin() + before, whole.end())) << before << " steps before";
      const auto resumed = make(options);
      ASSERT_TRUE(resumed->load_state(state));
      EXPECT_EQ(resumed->quarantined().value(), met);
      while (take(*resumed)) {
      }
      EXPECT_GE(resumed->quarantined().value().size(), met.size());
    }
  }
}

// So that replacements are damaged, too.
TEST_F(Quarantine, ProvenanceNamesWhatTookThePlaces) {
  const TestSet b = make_dataset("quarantine-named-b", {40}, seed_ + 1, false, true, {}, 1000);
  int number = 0;
  for (const bool is_mixture : {false, true}) {
    for (const Collate collate : kCollates) {
      const TestSet sets[] = {damaged_set(fmt::format("quarantine-named-{}", number++), 25, true), b};
      LoaderOptions options = options_of(sets[0], collate);
      if (is_mixture) {
        options.epochs = 0;
        options.shards.clear();
        options.sources = {{{sets[0].url}, ""}, {{b.url}, ""}};
        options.weights = {{0, {2, 1}}};
        options.mix_end = order::MixEnd::kFirstEmpty;
      }
      constexpr int64_t kWorld = 3;
      std::vector<std::unique_ptr<Loader>> ranks;
      for (options.rank = 0; options.rank < kWorld; ++options.rank) {
        options.world_size = kWorld;
        options.uneven_ranks = true;
        ranks.push_back(make(options));
      }
      std::vector<std::vector<Rows>> steps;
      for (;;) {
        std::vector<Rows> step;
        for (const auto& rank : ranks) {
          if (const auto batch = take(*rank)) step.push_back(rows_of(*batch));
        }
        if (step.empty()) break;
        steps.push_back(std::move(step));
      }
      std::vector<std::string> states;
      int64_t replaced = 0, marked = 0, most_attempts = 0;
      for (const auto& rank : ranks) {
        states.push_back(rank->state().value());
        const auto quarantined = rank->quarantined();
        for (const auto& unit : quarantined.value()) {
          ++replaced;
          most_attempts = std::max(most_attempts, unit.attempts);
        }
      }
      // A loader that has read nothing, but knows the states.
      options.rank = 0;
      const auto other = make(options);
      for (size_t step = 0; step < steps.size(); ++step) {
        const auto alone = ranks[1]->provenance(static_cast<int64_t>(step)).value();
        EXPECT_EQ(rows_named(alone[1], sets, options.seq_len), steps[step][1]);
        const auto named = other->provenance(static_cast<int64_t>(step), states).value();
        for (size_t rank = 0; rank < named.size(); ++rank) {
          ASSERT_EQ(rows_named(named[rank], sets, options.seq_len), steps[step][rank]) << step << " " << rank;
          for (const RowParts& parts : named[rank]) marked += !parts.empty() && !parts[0].replaces.empty();
        }
      }
      EXPECT_GT(replaced, 10);
      EXPECT_GT(most_attempts, 1);
      EXPECT_EQ(marked, replaced);
    }
  }
}

TEST_F(Quarantine, AStateOfAnotherRunSaysNothingOfThisOne) {
  const TestSet data = damaged_set("quarantine-other", 3, false);
  LoaderOptions options = options_of(data, Collate::kPad);
  const auto loader = make(options);
  ++options.order.seed;
  const std::vector<std::string> states = {make(options)->state().value()};
  const auto named = loader->provenance(0, states);
  ASSERT_FALSE(named);
  EXPECT_EQ(named.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(loader->provenance(0, std::vector<std::string>{"{}"}));
}

TEST_F(Quarantine, AMissingShardIsReplacedWhole) {
  const TestSet data = damaged_set("quarantine-missing", 0, false);
  const Location missing = data.shard(3);
  LoaderOptions options = options_of(data, Collate::kPad, 1);
  options.shards = {data.url + "/{00000..00003}.tar"};
  const auto loader = make(options);
  ASSERT_TRUE(loader->open());
  ASSERT_TRUE(missing.storage->remove(std::vector{missing.key}));
  int64_t rows = 0;
  while (const auto batch = take(*loader)) rows += batch->rows;
  EXPECT_EQ(rows, 180);
  const auto ledger = loader->quarantined().value();
  ASSERT_EQ(ledger.size(), 30u);
  EXPECT_THAT(ledger[0].reason, HasSubstr("00003.tar"));
}

TEST_F(Quarantine, TooMuchDamageIsAnErrorThatStays) {
  const TestSet data = damaged_set("quarantine-most", 0, true);
  LoaderOptions options = options_of(data, Collate::kPad, 1);
  options.max_bad = 7;
  const auto loader = make(options);
  Result<std::optional<Batch>> batch = std::nullopt;
  while ((batch = loader->next()) && *batch) {
  }
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(batch.error().message(), HasSubstr("max_bad is 7"));
  EXPECT_FALSE(loader->next()) << "the state stays before the batch";
  EXPECT_LE(loader->quarantined().value().size(), 7u);
}

TEST_F(Quarantine, ADatasetWithoutAWholeRowIsAnError) {
  const TestSet data = make_dataset("quarantine-all", {12, 12}, seed_);
  truncate(data.shard(0));
  truncate(data.shard(1));
  const auto batch = make(options_of(data, Collate::kPad, 1))->next();
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(batch.error().message(), HasSubstr("damaged too"));
}

TEST_F(Quarantine, WithoutItDamageIsAnErrorOfItsBatch) {
  const TestSet data = damaged_set("quarantine-raise", 1, false);
  LoaderOptions options = options_of(data, Collate::kPad, 1);
  options.on_bad = OnBad::kRaise;
  const auto loader = make(options);
  Result<std::optional<Batch>> batch = std::nullopt;
  while ((batch = loader->next()) && *batch) {
  }
  EXPECT_TRUE(batch || batch.error().code() == ErrorCode::kCorruption);
  EXPECT_TRUE(loader->quarantined().value().empty());
}

TEST_F(Quarantine, MixturesReplaceRowsOfTheSameDataset) {
  const TestSet a = damaged_set("quarantine-mix-a", 6, true),
                b = make_dataset("quarantine-mix-b", {80}, seed_ + 1, false, true, {}, 1000);
  LoaderOptions options = options_of(a, Collate::kPad, 0);
  options.shards.clear();
  options.sources = {{{a.url}, ""}, {{b.url}, ""}};
  options.weights = {{0, {2, 1}}};
  options.mix_end = order::MixEnd::kFirstEmpty;
  const Steps alone = run(options, 1);
  EXPECT_EQ(run(options, 3), alone);
  const auto loader = make(options);
  while (take(*loader)) {
  }
  const auto ledger = loader->quarantined().value();
  EXPECT_GE(ledger.size(), 10u);
  for (const auto& unit : ledger) EXPECT_EQ(unit.source, 0);
}

}  // namespace
}  // namespace millrace::loader
