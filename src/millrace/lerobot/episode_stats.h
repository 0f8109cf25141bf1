// SPDX-License-Identifier: Apache-2.0
#pragma once

// The statistics of each episode as JSON, {"feature": {"min": [...], ..., "count": [n]}}: v2.1 keeps them as lines,
// v3.0 as columns. Private to this room. Thread-safe.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "millrace/lerobot/convert.h"
#include "millrace/lerobot/source.h"

namespace millrace::lerobot {

// Returns one object for each episode of the source: the stored statistics, or those computed from its rows and frames
// if none are stored (v2.0). Uses threads and stop of the options. Errors: corruption, those of compute_stats and
// add_picture_stats, and of reading.
[[nodiscard]] Result<std::vector<Json>> episode_stats(const Source& source, const MakeOptions& options);

// Reads an episode's integers in a column, one per row. Errors: corruption (a null, a column of another kind, fewer
// rows than the episode has), those of reading.
[[nodiscard]] Result<std::vector<int64_t>> read_integers(const Source& source, size_t episode,
                                                         const std::string& column);

// Computes the exact statistics of integers, with the keys of `like` and quantiles as NumPy's. REQUIRES: values is not
// empty.
Json integer_stats(std::span<const int64_t> values, const Json& like);

// Merges a feature's statistics over all episodes: mean and variance are weighted by the counts. Leaves out quantiles,
// which cannot be merged. Returns null if an episode has no statistics of the feature.
Json merged_stats(std::span<const Json> episodes, const std::string& feature);

}  // namespace millrace::lerobot
