// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes datasets from some episodes of others: split, delete, merge. As in convert.h, sources are only read, the same
// call continues a stopped run, and a result is validated before it gets its name. Episodes and rows are numbered
// anew. The list of tasks stays whole, so that task numbers keep their meaning; a merge joins the lists. If every
// source is v2.x with meta/modality.json, the result has it too, with GR00T's stats.json. Thread-safe.

#include <string>
#include <vector>

#include "millrace/lerobot/convert.h"
#include "millrace/lerobot/episode_list.h"

namespace millrace::lerobot {

// One part of a split. It is written in the version of its source.
struct SplitPart {
  std::string name;                  // the folder below the target; empty: the target itself
  std::vector<EpisodeRange> ranges;  // episodes, in the order of the source
};

// Makes one dataset for each part; parts may share episodes. Errors: those of convert_dataset; invalid_argument (no
// parts, an episode that is missing or twice in a part, a name twice).
[[nodiscard]] Result<std::vector<MadeDataset>> split_dataset(const Location& source, const std::string& target,
                                                             const std::vector<SplitPart>& parts,
                                                             const MakeOptions& options);

// A part with a fraction of the episodes. Parts take episodes in order; the remaining episodes belong to no part.
struct SplitFraction {
  std::string name;
  double fraction = 0;
};
[[nodiscard]] Result<std::vector<MadeDataset>> split_dataset(const Location& source, const std::string& target,
                                                             const std::vector<SplitFraction>& fractions,
                                                             const MakeOptions& options);

// Makes a dataset of the episodes that `ranges` does not name. Errors: those of split_dataset; invalid_argument (no
// episode is left).
[[nodiscard]] Result<MadeDataset> delete_episodes(const Location& source, const std::string& target,
                                                  const std::vector<EpisodeRange>& ranges, const MakeOptions& options);

// Makes a dataset of all episodes of all sources, in their order. Errors: those of convert_dataset; invalid_argument
// (fewer than two sources; features, fps, robot_type or modality.json differ, naming the source and the difference;
// v2.x and v3.0 are mixed and `to` is kUnknown). v2.0 and v2.1 together make v2.1.
[[nodiscard]] Result<MadeDataset> merge_datasets(const std::vector<Location>& sources, const std::string& target,
                                                 Version to, const MakeOptions& options);

}  // namespace millrace::lerobot
