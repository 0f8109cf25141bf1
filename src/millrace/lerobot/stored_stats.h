// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads all statistics that a dataset stores for each of its episodes. (Dataset keeps only those that the checks
// need.)

#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

inline constexpr std::string_view kStatsFile = "meta/stats.json";
inline constexpr std::string_view kEpisodeStatsLines = "meta/episodes_stats.jsonl";  // v2.1
// The statistics of a million episodes take 4 GB as text.
inline constexpr int64_t kMostStatsText = int64_t{8} << 30;
inline constexpr int64_t kMostStatsRows = 10'000'000;
inline constexpr std::string_view kEpisodeTables = "meta/episodes/";  // v3.0

// Returns the statistics by position in Dataset::episodes: for v2.1 from episodes_stats.jsonl, for v3.0 from the
// columns stats/FEATURE/STATISTIC of meta/episodes. An entry is empty if nothing is stored; for v2.0 all entries are.
// Errors: corruption (a line or a table that cannot be read), unsupported (the Parquet library), those of reading.
[[nodiscard]] Result<std::vector<StatsByFeature>> stored_episode_stats(const Dataset& dataset);

}  // namespace millrace::lerobot
