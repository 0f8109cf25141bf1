// SPDX-License-Identifier: Apache-2.0
#pragma once

// Merges the stored statistics of several datasets, without reading their data. Counts, bounds, means and standard
// deviations equal those of all rows together. Quantiles cannot be merged: each gets an interval that contains it.
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
    int64_t count = 0, parts = 0;             // parts: episodes; a dataset without their statistics is one part
    std::vector<double> min, max, mean, std;  // [dim]
    // Bounds of each quantile in kStatQuantiles, [dim]: equal where the quantile is known.
    std::array<std::vector<double>, kStatQuantiles.size()> low, high;
  };
  std::vector<OfFeature> features;    // features that all datasets have, by name
  std::vector<std::string> left_out;  // features, each with the reason
};

// The known statistics of one part's values in one dimension.
struct DimensionStats {
  int64_t count = 0;
  double min = 0, max = 0;
  std::vector<std::pair<double, double>> quantiles;  // share and value, as numpy.quantile gives them
};
// Returns the interval that contains the quantile of all parts together. Assumes that the statistics of the parts are
// exact. REQUIRES: `parts` is not empty.
std::pair<double, double> quantile_interval(const std::vector<DimensionStats>& parts, double share);

// Merges the datasets. Uses the statistics of a dataset's episodes if it stores them (v2.1, v3.0), otherwise its
// meta/stats.json. The quantiles that LeRobot writes to stats.json are means of the episodes' quantiles. Errors:
// corruption (a dataset without statistics; statistics of another width), those of stored_episode_stats.
[[nodiscard]] Result<MergedStats> merge_stats(const std::vector<Dataset>& datasets);

// Returns the text of a stats.json. Contains a quantile only if its interval is a single value in each dimension.
std::string stats_json(const MergedStats& stats);

}  // namespace millrace::lerobot
