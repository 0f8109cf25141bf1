// SPDX-License-Identifier: Apache-2.0
#pragma once

// The statistics of each episode as JSON, {"feature": {"min": [...], ..., "count": [n]}}: v2.1 keeps them as lines,
// v3.0 as columns. Private to this room. Functions are thread-safe.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "millrace/lerobot/convert.h"
#include "millrace/lerobot/source.h"

namespace millrace::lerobot {

// One object for each episode of the source: what it stores, else what is computed from its rows and frames (v2.0).
// Uses threads and stop of the options. Errors: corruption, those of compute_stats and add_picture_stats, and of
// reading.
[[nodiscard]] Result<std::vector<Json>> episode_stats(const Source& source, const MakeOptions& options);

// The integers of a column, a row of the episode each. Errors: corruption (a null, a column of another kind, fewer rows
// than the episode has), those of reading.
[[nodiscard]] Result<std::vector<int64_t>> read_integers(const Source& source, size_t episode,
                                                         const std::string& column);

// The statistics of integers, with the keys of `like`. Exact, quantiles as NumPy's. REQUIRES: values is not empty.
Json integer_stats(std::span<const int64_t> values, const Json& like);

// The statistics of a feature over all episodes: mean and variance weighted by the counts, no quantiles, which cannot
// be merged. Null where an episode has none of it.
Json merged_stats(std::span<const Json> episodes, const std::string& feature);

}  // namespace millrace::lerobot
