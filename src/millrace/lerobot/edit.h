// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes datasets of some episodes of others: split, delete, merge. As convert.h: the sources are only read, a run that
// was stopped is continued by the same call, and a result is validated before it gets its name. Episodes and rows are
// numbered anew. The list of tasks stays whole, so that the numbers of tasks keep their meaning; a merge joins the
// lists. Where every source is v2.x with meta/modality.json, so is the result, with GR00T's stats.json. Thread-safe.

#include <string>
#include <vector>

#include "millrace/lerobot/convert.h"
#include "millrace/lerobot/episode_list.h"

namespace millrace::lerobot {

// A dataset is written in the version of its source.
struct SplitPart {
  std::string name;                  // of the folder below the target; empty: the target itself
  std::vector<EpisodeRange> ranges;  // its episodes, in the order of the source
};

// One dataset for each part; parts may share episodes. Errors: as of convert_dataset; invalid_argument (no parts, an
// episode that is not there or twice in a part, a name twice).
[[nodiscard]] Result<std::vector<MadeDataset>> split_dataset(const Location& source, const std::string& target,
                                                             const std::vector<SplitPart>& parts,
                                                             const MakeOptions& options);

// One dataset for each fraction of the episodes, in their order; what is left belongs to none.
struct SplitFraction {
  std::string name;
  double fraction = 0;
};
[[nodiscard]] Result<std::vector<MadeDataset>> split_dataset(const Location& source, const std::string& target,
                                                             const std::vector<SplitFraction>& fractions,
                                                             const MakeOptions& options);

// The episodes that `ranges` does not name. Errors: as of split_dataset; invalid_argument (none is left).
[[nodiscard]] Result<MadeDataset> delete_episodes(const Location& source, const std::string& target,
                                                  const std::vector<EpisodeRange>& ranges, const MakeOptions& options);

// All episodes of all sources, in their order. Errors: as of convert_dataset; invalid_argument (fewer than two sources;
// features, fps, robot_type or modality.json differ: naming the source and what; v2.x and v3.0 are
// mixed and `to` is kUnknown; of v2.0 and v2.1 together v2.1 is made).
[[nodiscard]] Result<MadeDataset> merge_datasets(const std::vector<Location>& sources, const std::string& target,
                                                 Version to, const MakeOptions& options);

}  // namespace millrace::lerobot
