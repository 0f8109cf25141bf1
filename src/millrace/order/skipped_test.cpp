// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/skipped.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "millrace/base/testing.h"
#include "millrace/order/mixture.h"

namespace millrace::order {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SkippedSteps, AreWhatWasAddedAndStaySortedAndApart) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<SkippedSteps> skipped;
    std::set<std::pair<uint64_t, int64_t>> expected;
    for (int n = 0; n < 12; ++n) {
      const uint64_t epoch = random() % 3;
      const auto begin = static_cast<int64_t>(random() % 40), end = begin + static_cast<int64_t>(random() % 9);
      add_skipped(skipped, {epoch, begin, end});
      for (int64_t at = begin; at < end; ++at) expected.emplace(epoch, at);
    }
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      int64_t in_threes = 0;
      for (int64_t at = 0; at < 50; ++at) {
        ASSERT_EQ(is_skipped(skipped, epoch, at), expected.contains({epoch, at}));
        if (at % 3 == 0 && at < 31) in_threes += expected.contains({epoch, at}) ? 1 : 0;
      }
      ASSERT_EQ(count_skipped(skipped, epoch, 3, 31), in_threes);
    }
    for (size_t i = 1; i < skipped.size(); ++i) {
      const SkippedSteps &a = skipped[i - 1], &b = skipped[i];
      ASSERT_TRUE(a.epoch < b.epoch || (a.epoch == b.epoch && a.end < b.begin));
    }
  }
}

TEST(SkippedSteps, AreInTheStateAndOnlyThereWhenThereAreSome) {
  OrderState state{
      .epoch = 1, .position = 8, .options = {.lanes = 1, .window_samples = 3, .block_windows = 1}, .source = "5f2b"};
  EXPECT_EQ(serialize_state(state).find("skipped"), std::string::npos);
  state.skipped = {{1, 8, 16}, {2, 0, 4}};
  const std::string text = serialize_state(state);
  EXPECT_THAT(text, HasSubstr(R"("skipped":[{"begin":8,"end":16,"epoch":1},{"begin":0,"end":4,"epoch":2}])"));
  EXPECT_EQ(*parse_state(text), state);
  const auto wrong = [&](const std::string& list) {
    std::string other = text;
    const size_t at = other.find("[{");
    other.replace(at, other.find(']') + 1 - at, list);
    EXPECT_FALSE(parse_state(other)) << other;
  };
  wrong(R"([{"begin":8,"end":8,"epoch":1}])");
  wrong(R"([{"begin":8,"epoch":1}])");
  wrong(R"([{"begin":8,"end":16,"epoch":2},{"begin":0,"end":4,"epoch":1}])");
  wrong("[]");
}

}  // namespace
}  // namespace millrace::order
