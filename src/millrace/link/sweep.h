// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares the whole directory with the whole bucket: lists both sides in order, merges them with the state, and
// decides about each path. Memory does not grow with the number of files, and unchanged files cost a listing only.
// Blocks.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/link/carry.h"
#include "millrace/sync/key_range.h"

namespace millrace::link {

struct SweepReport {
  int64_t files_here = 0, files_there = 0;
  int64_t passed = 0;  // entries that are not files: links, devices, folder markers
  LinkCounts counts;
  std::string not_deleted;  // why nothing was removed although files are gone; otherwise empty
  double seconds = 0;
  bool there_changed = false;  // something came from the bucket
};

// Removals of one side, kept for the end of the sweep. Paths beyond the number that the link allows are only counted.
struct Deletions {
  std::vector<std::string> paths;
  int64_t count = 0;
};

// The findings of a sweep in both sides, and the paths that it left for its end.
struct SweepFindings {
  int64_t files_here = 0, files_there = 0, passed = 0;
  // Files that the link knew on this side before and that are still there. On an emptied side (emptied.h), only files
  // of its list count.
  int64_t known_here = 0, known_there = 0;
  Deletions delete_here, delete_there;
  std::vector<std::string> replaced;  // paths of objects that a released file may need under another name
  std::string unreadable;             // a folder that could not be read
};

// Sweeps once. After an error, files copied so far stay and are remembered, and nothing is removed. Errors:
// unavailable (the directory is not mounted), those of the two listings and of the state, cancelled.
[[nodiscard]] Result<SweepReport> sweep(const LinkConfig& config, const Location& here, const Location& there,
                                        LinkState& state, Carrier& carrier, const std::stop_token& stop);

// Sweeps one range, for tasks that share a sweep: each looks at ranges, and one of them calls end_sweep() with the
// findings of all. REQUIRES: the state has the rows of the range. Copied files are remembered on return.
[[nodiscard]] Result<SweepFindings> sweep_range(const LinkConfig& config, const Location& here, const Location& there,
                                                LinkState& state, Carrier& carrier, sync::KeyRange& range,
                                                const std::stop_token& stop);
// Loads the rows of paths into the state.
using LoadRows = std::function<Status(const std::vector<std::string>&)>;
// Removes the files that all ranges left for the end. If it removes none, `report` says why.
[[nodiscard]] Status end_sweep(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
                               Carrier& carrier, SweepFindings findings, const LoadRows& load, SweepReport& report,
                               const std::stop_token& stop);
// Returns whether any change came from the bucket.
bool changed_there(const LinkCounts& counts);

// Makes a filter from the rules of the config. Errors: invalid_argument.
[[nodiscard]] Result<sync::Filter> filter_of(const LinkConfig& config);

}  // namespace millrace::link
