// SPDX-License-Identifier: Apache-2.0
// What a step was made of, and steps that are left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/testing.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/testing/test_sets.h"

namespace millrace::loader {
namespace {

using ::testing::HasSubstr;

LoaderOptions options_of(const TestSet& data, int64_t global_batch, Collate collate, int64_t epochs) {
  LoaderOptions options = options_for(data, global_batch);
  options.collate = collate;
  options.epochs = epochs;
  options.pad_id = -1;
  return options;
}

LoaderOptions mixture_of(const TestSet& a, const TestSet& b, int64_t global_batch) {
  LoaderOptions options = options_of(a, global_batch, Collate::kPack, 0);
  options.shards.clear();
  options.sources = {{{a.url}, ""}, {{b.url}, ""}};
  options.weights = {{0, {2, 1}}};
  options.mix_end = order::MixEnd::kFirstEmpty;
  return options;
}

// The batches of one rank to the end of the pass.
std::vector<Rows> rest_of(Loader& loader) {
  std::vector<Rows> steps;
  for (;;) {
    auto batch = loader.next();
    EXPECT_TRUE(batch) << batch.error().to_string();
    if (!batch || !*batch) return steps;
    steps.push_back(rows_of(**batch));
  }
}

std::unique_ptr<Loader> loader_of(LoaderOptions options, int64_t rank = 0, int64_t world = 1) {
  options.rank = rank;
  options.world_size = world;
  options.uneven_ranks = true;
  auto loader = Loader::create(options);
  EXPECT_TRUE(loader) << loader.error().to_string();
  return std::move(*loader);
}

class Skip : public ::testing::Test {
 protected:
  // Loaders of each kind, over these datasets.
  std::vector<LoaderOptions> kinds() const {
    std::vector<LoaderOptions> all;
    for (const Collate collate : {Collate::kPad, Collate::kPack, Collate::kBestFit}) {
      all.push_back(options_of(sets_[0], 6, collate, 3));
      all.back().drop_last = collate != Collate::kPad;
    }
    all.push_back(mixture_of(sets_[0], sets_[1], 6));
    return all;
  }

  const uint64_t seed_ = test_seed();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("MILLRACE_TEST_SEED={}", seed_)};
  std::mt19937_64 random_{seed_};
  const TestSet sets_[2] = {make_dataset("skip-a", {30, 1, 25}, seed_),
                            make_dataset("skip-b", {40}, seed_ + 1, false, true, {}, 1000)};
};

TEST_F(Skip, ProvenanceNamesTheTokensOfEachRowOfEachRank) {
  for (const LoaderOptions& options : kinds()) {
    for (const int64_t world : {1, 2, 3, 64}) {
      std::vector<std::unique_ptr<Loader>> ranks;
      for (int64_t rank = 0; rank < world; ++rank) ranks.push_back(loader_of(options, rank, world));
      for (int64_t step = 0; step < (world == 64 ? 2 : 1000); ++step) {
        const auto named = ranks.back()->provenance(step);
        const auto at = ranks[0]->step();
        std::vector<std::optional<Batch>> batches;
        for (auto& rank : ranks) batches.push_back(rank->next().value());
        if (!batches[0]) {
          EXPECT_GT(step, 5);
          break;
        }
        ASSERT_TRUE(named) << named.error().to_string();
        ASSERT_EQ(at.value(), step);
        ASSERT_EQ(std::ssize(*named), world);
        for (size_t rank = 0; rank < batches.size(); ++rank) {
          ASSERT_EQ(rows_named((*named)[rank], sets_, options.seq_len), rows_of(*batches[rank]))
              << "step " << step << " of rank " << rank << " of " << world;
        }
      }
    }
  }
}

TEST_F(Skip, SkippedStepsAreLeftOutAndNothingElseChanges) {
  for (const LoaderOptions& options : kinds()) {
    const std::vector<Rows> whole = rest_of(*loader_of(options));
    const auto steps = static_cast<int64_t>(whole.size());
    for (int round = 0; round < 5; ++round) {
      const auto before = static_cast<int64_t>(random_() % static_cast<uint64_t>(steps));
      const auto begin = static_cast<int64_t>(random_() % static_cast<uint64_t>(steps));
      const int64_t end = begin + 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(steps - begin));
      SCOPED_TRACE(fmt::format("{} of {} steps, then without [{}, {})", before, steps, begin, end));
      const auto loader = loader_of(options);
      for (int64_t i = 0; i < before; ++i) ASSERT_TRUE(loader->next());
      const Status skipped = loader->skip(begin, end);
      ASSERT_TRUE(skipped) << skipped.error().to_string();
      const std::string state = loader->state().value();
      std::vector<Rows> expected;
      for (int64_t step = before; step < steps; ++step) {
        if (step < begin || step >= end) expected.push_back(whole[static_cast<size_t>(step)]);
      }
      EXPECT_EQ(loader->pass_batches(0).value(), steps - (end - begin));
      EXPECT_EQ(loader->pass().value().over, expected.empty());
      EXPECT_EQ(rest_of(*loader), expected);
      EXPECT_TRUE(loader->pass().value().over);
      const auto resumed = loader_of(options);
      ASSERT_TRUE(resumed->load_state(state));
      EXPECT_EQ(rest_of(*resumed), expected);
    }
  }
}

TEST_F(Skip, LoadersThatShareAPassShareWhatIsLeft) {
  const LoaderOptions options = kinds().front();
  const auto whole = loader_of(options);
  ASSERT_TRUE(whole->skip(1, 4));
  const std::string state = whole->state().value();
  const std::vector<Rows> expected = rest_of(*whole);
  for (const LoaderOptions& kind : {options}) {
    std::vector<std::vector<Rows>> shares;
    for (int64_t number = 0; number < 2; ++number) {
      LoaderOptions mine = kind;
      mine.first_step = number;
      mine.step_stride = 2;
      const auto loader = loader_of(mine);
      ASSERT_TRUE(loader->load_state(state));
      shares.push_back(rest_of(*loader));
    }
    for (size_t step = 0; step < expected.size(); ++step) EXPECT_EQ(shares[step % 2][step / 2], expected[step]);
  }
}

TEST_F(Skip, TheStateBehindABatchKnowsWhatIsSkipped) {
  for (const LoaderOptions& options : kinds()) {
    const auto loader = loader_of(options);
    const Batch first = **loader->next();
    ASSERT_TRUE(loader->state_behind(first.epoch, first.next_position));
    ASSERT_TRUE(loader->skip(2, 4));
    const Batch second = **loader->next();
    EXPECT_EQ(loader->state_behind(second.epoch, second.next_position).value(), loader->state().value());
    EXPECT_THAT(loader->state().value(), HasSubstr("skipped"));
  }
}

TEST_F(Skip, StepsThatAreNotThereAreErrors) {
  for (const LoaderOptions& options : kinds()) {
    const auto loader = loader_of(options);
    const int64_t steps = loader->pass_batches(0).value();
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{-1, 2}, {3, 3}, {4, 3}, {steps - 1, steps + 1}}) {
      const Status skipped = loader->skip(begin, end);
      ASSERT_FALSE(skipped) << begin << " to " << end;
      EXPECT_EQ(skipped.error().code(), ErrorCode::kInvalidArgument);
    }
    for (const int64_t step : {int64_t{-1}, steps}) {
      const auto named = loader->provenance(step);
      ASSERT_FALSE(named) << step;
      EXPECT_EQ(named.error().code(), ErrorCode::kInvalidArgument);
    }
  }
}

TEST_F(Skip, AnEndlessLoaderCountsTheStepsOfTheRun) {
  LoaderOptions options = options_of(sets_[0], 6, Collate::kPad, 0);
  const auto loader = loader_of(options);
  constexpr int64_t kFar = 1'000'000'000;
  const auto far = loader->provenance(kFar);
  ASSERT_TRUE(far) << far.error().to_string();
  EXPECT_EQ(std::ssize((*far)[0]), 6);
  ASSERT_TRUE(loader->skip(0, 20));
  const auto named = loader->provenance(20);
  ASSERT_TRUE(named);
  EXPECT_EQ(rows_of(*loader->next().value()), rows_named((*named)[0], sets_, options.seq_len));
  EXPECT_EQ(loader->step().value(), 21);
}

}  // namespace
}  // namespace millrace::loader
