// SPDX-License-Identifier: Apache-2.0
#pragma once

// The statistics that a dataset stores for each of its episodes, all of them. (Dataset keeps only what the checks
// need.)

#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

inline constexpr std::string_view kStatsFile = "meta/stats.json";
inline constexpr std::string_view kEpisodeStatsLines = "meta/episodes_stats.jsonl";  // v2.1
// A statistic of a million episodes has 4 GB as text.
inline constexpr int64_t kMostStatsText = int64_t{8} << 30;
inline constexpr int64_t kMostStatsRows = 10'000'000;
inline constexpr std::string_view kEpisodeTables = "meta/episodes/";  // v3.0

// By position in Dataset::episodes: of v2.1 from episodes_stats.jsonl, of v3.0 from the columns stats/FEATURE/STATISTIC
// of meta/episodes. Entries are empty where nothing is stored; all of v2.0 are.
// Errors: corruption (a line or a table that cannot be read), unsupported (the Parquet library), those of reading.
[[nodiscard]] Result<std::vector<StatsByFeature>> stored_episode_stats(const Dataset& dataset);

}  // namespace millrace::lerobot
