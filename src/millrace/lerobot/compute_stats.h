// SPDX-License-Identifier: Apache-2.0
#pragma once

// The statistics of a dataset's numeric columns, computed from all rows in float64: exact quantiles, and no averages of
// averages. Optionally those of each episode. picture_stats.h has those of cameras. Thread-safe.

#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/exact_stats.h"

namespace millrace::lerobot {

struct StatsOptions {
  bool groot = false;            // float columns only: GR00T's stats.json
  bool by_episode = false;       // also of each episode
  int threads = 0;               // 0: one a processor, 16 for a service
  int64_t kept_bytes = 1 << 30;  // of decoded numbers between passes; a file that does not fit is read in each pass
  // Data files whose timestamps are computed as row of the episode / fps, as a repair will write them.
  const std::set<std::string>* mended_clocks = nullptr;
  Progress* progress = nullptr;  // counts files, once in each pass; null: nobody looks
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
  int64_t files_read = 0;  // counting a file again for each pass that read it

  const OfFeature* find(std::string_view name) const;
};

// Memory: 256 KiB to 2.5 MiB for each number of a row, `kept_bytes`, and an episode for each thread. Errors: corruption
// (a table that cannot be read, a row of another length, a value that is not finite, episodes with other rows than the
// file: it names file and row; no table).
[[nodiscard]] Result<ComputedStats> compute_stats(const Dataset& dataset, const StatsOptions& options = {});

// The text of stats.json, of LeRobot or of GR00T. REQUIRES: all values are finite.
std::string stats_json(const ComputedStats& stats, bool groot);

}  // namespace millrace::lerobot
