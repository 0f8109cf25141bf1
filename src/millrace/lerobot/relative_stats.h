// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes GR00T's relative_stats.json: statistics of actions minus the state at the first step of their window, as a
// matrix horizon x dim for each group of actions. The windows are all runs of `horizon` consecutive rows of one
// episode. GR00T N1.6 and N1.7 (gr00t/data/stats.py) use the same windows. Thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// The names of two groups in modality.json.
struct RelativePair {
  std::string action, state;
};

struct RelativeStats {
  std::string group;
  int64_t dim = 0, windows = 0;
  std::vector<ExactStats> steps;  // [horizon], each [dim]
};

// Computes the statistics of `pairs`. If `pairs` is empty, uses each group of actions without a rotation that has a
// group of states with the same name and width. (GR00T reads the groups that its modality config calls RELATIVE, and
// ignores others.) Uses threads and stop of the options. Memory: the chosen columns of all rows in float64. Errors:
// invalid_argument (a group is missing in modality.json, has another width than its state, or has a rotation, which
// cannot be subtracted; no group is left; no episode is as long as the horizon), corruption (as compute_stats),
// unsupported, those of reading.
[[nodiscard]] Result<std::vector<RelativeStats>> relative_stats(const Dataset& dataset, int64_t horizon,
                                                                const std::vector<RelativePair>& pairs,
                                                                const StatsOptions& options = {});

std::string relative_stats_json(const std::vector<RelativeStats>& stats);

}  // namespace millrace::lerobot
