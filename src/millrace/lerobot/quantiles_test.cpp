// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/quantiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::lerobot {
namespace {

constexpr double kQuantiles[] = {0, 0.01, 0.1, 0.5, 0.9, 0.99, 1};

std::vector<double> selected(const std::vector<double>& values, bool singles) {
  QuantileSelect select(kQuantiles, singles);
  for (int pass = 0; pass < select.passes(); ++pass) {
    for (const double value : values) select.add(value);
    select.end_pass();
  }
  return select.results();
}

double by_sorting(std::vector<double> values, double quantile) {
  std::sort(values.begin(), values.end());
  const double place = quantile * static_cast<double>(values.size() - 1), t = place - std::floor(place);
  const double low = values[static_cast<size_t>(place)];
  const double high = values[std::min(values.size() - 1, static_cast<size_t>(place) + 1)];
  return t < 0.5 ? low + (high - low) * t : high - (high - low) * (1 - t);
}

TEST(QuantileSelect, IsWhatSortingGives) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(test_seed());
  for (int round = 0; round < rounds(40); ++round) {
    const bool singles = round % 2 == 0;
    std::vector<double> values(1 + random() % 2000);
    std::normal_distribution<double> normal(round % 3 == 0 ? 1000 : 0, round % 5 == 0 ? 1e-3 : 50);
    for (double& value : values) {
      value = random() % 7 == 0 ? 0 : normal(random);
      if (singles) value = static_cast<double>(static_cast<float>(value));
    }
    const std::vector<double> results = selected(values, singles);
    for (size_t i = 0; i < results.size(); ++i)
      ASSERT_EQ(results[i], by_sorting(values, kQuantiles[i])) << round << " " << kQuantiles[i];
  }
}

// More than a list takes, in the first digits and in the last.
TEST(QuantileSelect, CountsWhereManyValuesAreAlike) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(test_seed());
  for (const bool singles : {true, false}) {
    std::vector<double> values(100'000, 1.0);
    for (size_t i = 0; i < 60'000; ++i) values[i] = 1 + static_cast<double>(random() % 3'000) / (1 << 22);
    const std::vector<double> results = selected(values, singles);
    for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], by_sorting(values, kQuantiles[i]));
  }
}

TEST(QuantileSelect, TellsWhetherFloat32IsEnough) {
  const auto exact = [](double value) {
    QuantileSelect select(kQuantiles, true);
    select.add(value);
    return select.exact();
  };
  EXPECT_TRUE(exact(0.5) && exact(16777216) && exact(-0.0) && exact(NAN) && exact(INFINITY));
  EXPECT_FALSE(exact(0.1) || exact(16777217) || exact(1e-60));
}

TEST(QuantileSelect, TakesWhatIsOdd) {
  for (const double result : selected({}, true)) EXPECT_TRUE(std::isnan(result));
  for (const double result : selected({-0.0}, false)) EXPECT_EQ(result, 0);
  const std::vector<double> wide = selected({-INFINITY, 1, INFINITY}, false);
  EXPECT_EQ(wide.front(), -INFINITY);
  EXPECT_EQ(wide[3], 1);
  EXPECT_EQ(selected({1, NAN, 0}, true).front(), 0);
}

}  // namespace
}  // namespace millrace::lerobot
