// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the statistics files of a dataset of any version, with stored statistics replaced by computed ones.

#include <string>
#include <vector>

#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// A file below the dataset's root that replaces the existing one.
struct NewFile {
  std::string path, content;
  std::string version;  // version of the file that was read; empty: there is none
};

// Returns the changed statistics files. v2.0: meta/stats.json. v2.1: meta/episodes_stats.jsonl, without quantiles.
// v3.0: meta/stats.json and the columns stats/... of meta/episodes. If a v2.x dataset has modality.json or stats.json,
// also GR00T's stats.json with the float features. `whole` replaces statistics of the dataset, and `by_episode` those
// of its episodes. Features that are missing there keep their stored statistics. Files without changes are not
// returned. REQUIRES: `by_episode` has the statistics of each episode. Errors: corruption (a stored file cannot be
// read, or lists other episodes), unsupported (the Parquet library), those of reading.
[[nodiscard]] Result<std::vector<NewFile>> stats_files(const Dataset& dataset, const ComputedStats& whole,
                                                       const ComputedStats& by_episode);

// Whether `dataset` keeps statistics of each episode.
bool keeps_episode_stats(const Dataset& dataset);

// Replaces the files one by one, each only if it is still the file that was read. Errors: unavailable (a file was
// changed meanwhile; later files are not written), those of writing.
[[nodiscard]] Status write_files(const Location& root, const std::vector<NewFile>& files);

}  // namespace millrace::lerobot
