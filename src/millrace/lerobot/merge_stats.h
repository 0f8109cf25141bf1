// SPDX-License-Identifier: Apache-2.0
#pragma once

// Statistics of several datasets together, from what they store and without their data. Counts, bounds, means and
// standard deviations are those of all rows. Quantiles cannot be merged: each gets an interval that it lies in.
// Thread-safe.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/exact_stats.h"

namespace millrace::lerobot {

struct MergedStats {
  struct OfFeature {
    std::string name;
    bool is_picture = false;
    int64_t count = 0, parts = 0;             // parts: episodes, or datasets that store none of episodes
    std::vector<double> min, max, mean, std;  // [dim]
    // By kStatQuantiles, [dim]: equal where the quantile is known.
    std::array<std::vector<double>, kStatQuantiles.size()> low, high;
  };
  std::vector<OfFeature> features;    // that all datasets have, by name
  std::vector<std::string> left_out;  // features, each with the reason
};

// What is known of one part's values of one dimension.
struct DimensionStats {
  int64_t count = 0;
  double min = 0, max = 0;
  std::vector<std::pair<double, double>> quantiles;  // share and value, as numpy.quantile's
};
// The interval that the quantile of all parts together lies in, if what is known of them is exact. REQUIRES: parts.
std::pair<double, double> quantile_interval(const std::vector<DimensionStats>& parts, double share);

// A dataset counts by its episodes' statistics where it stores them (v2.1, v3.0), else by meta/stats.json: the
// quantiles that LeRobot writes there are means of the episodes' quantiles. Errors: corruption (a dataset without
// statistics; statistics of another width), those of stored_episode_stats.
[[nodiscard]] Result<MergedStats> merge_stats(const std::vector<Dataset>& datasets);

// The text of a stats.json: quantiles only where their interval is one value in each dimension.
std::string stats_json(const MergedStats& stats);

}  // namespace millrace::lerobot
