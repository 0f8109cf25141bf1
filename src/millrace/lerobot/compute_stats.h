// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes the statistics of a dataset's numeric columns from all rows in float64: exact quantiles, and no averages of
// averages. Can also compute the statistics of each episode. picture_stats.h computes those of cameras. Thread-safe.

#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/exact_stats.h"

namespace millrace::lerobot {

struct StatsOptions {
  bool groot = false;            // float columns only, as in GR00T's stats.json
  bool by_episode = false;       // also compute the statistics of each episode
  int threads = 0;               // 0: one per processor, or 16 for a service
  int64_t kept_bytes = 1 << 30;  // decoded numbers kept between passes; a file that does not fit is read in each pass
  // Data files whose timestamps are replaced by (row of the episode / fps), as a repair will write them.
  const std::set<std::string>* mended_clocks = nullptr;
  Progress* progress = nullptr;  // counts files, once in each pass; null: not reported
  std::stop_token stop;
};

struct ComputedStats {
  struct OfFeature {
    std::string name, dtype;
    ExactStats stats;
    std::vector<ExactStats> episodes;  // by position in Dataset::episodes; empty unless asked for
  };
  std::vector<OfFeature> features;    // in the order of info.json
  std::vector<std::string> left_out;  // features without statistics, each with the reason
  int64_t rows = 0, files = 0;
  int64_t files_read = 0;  // a file counts once for each pass that reads it

  const OfFeature* find(std::string_view name) const;
};

// Computes the statistics. Memory: 256 KiB to 2.5 MiB for each number of a row, `kept_bytes`, and one episode for each
// thread. Errors: corruption (a table cannot be read, a row has another length, a value is not finite, or a file's
// rows do not match its episodes: the message names file and row; there is no table).
[[nodiscard]] Result<ComputedStats> compute_stats(const Dataset& dataset, const StatsOptions& options = {});

// Returns the text of LeRobot's or GR00T's stats.json. REQUIRES: all values are finite.
std::string stats_json(const ComputedStats& stats, bool groot);

}  // namespace millrace::lerobot
