// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files that a dataset of each version keeps statistics in, with computed ones in place of the stored.

#include <string>
#include <vector>

#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// A file below the dataset's root that replaces the one there.
struct NewFile {
  std::string path, content;
  std::string version;  // of the file that was read; empty: there is none
};

// v2.0: meta/stats.json. v2.1: meta/episodes_stats.jsonl, without quantiles. v3.0: meta/stats.json and the columns
// stats/... of meta/episodes. Where a dataset of v2.x has modality.json or stats.json, also GR00T's stats.json: float
// features. `whole` replaces those of the dataset and `by_episode` those of its episodes; features that one does not
// have stay as they are stored, and a file that none of them changes is not among the result.
// REQUIRES: `by_episode` has those of each episode. Errors: corruption (a stored file cannot be read, or lists other
// episodes), unsupported (the Parquet library), those of reading.
[[nodiscard]] Result<std::vector<NewFile>> stats_files(const Dataset& dataset, const ComputedStats& whole,
                                                       const ComputedStats& by_episode);

// Whether `dataset` keeps statistics of each episode.
bool keeps_episode_stats(const Dataset& dataset);

// Replaces the files in turn, each only if it is still the one that was read. Errors: unavailable (it was changed
// meanwhile; later files are not written), those of writing.
[[nodiscard]] Status write_files(const Location& root, const std::vector<NewFile>& files);

}  // namespace millrace::lerobot
