// SPDX-License-Identifier: Apache-2.0
#pragma once

// One look at everything: both sides are listed in order, merged with the state, and each path is decided. Memory does
// not grow with the number of files, and what is unchanged costs a listing only. Blocks.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/link/carry.h"
#include "millrace/sync/key_range.h"

namespace millrace::link {

struct SweepReport {
  int64_t files_here = 0, files_there = 0;
  int64_t passed = 0;  // links, devices, folder markers: what is no file
  LinkCounts counts;
  std::string not_deleted;  // why nothing was removed although files are gone; else empty
  double seconds = 0;
  bool there_changed = false;  // something came from the bucket
};

// Removals of one side, which wait for the end of the sweep. More than the link allows are only counted.
struct Deletions {
  std::vector<std::string> paths;
  int64_t count = 0;
};

// What a look at both sides found, and what it left for the end of the sweep.
struct SweepFindings {
  int64_t files_here = 0, files_there = 0, passed = 0;
  // Files that the link knew on a side before and that are still there; of an emptied side (emptied.h) those of its
  // list.
  int64_t known_here = 0, known_there = 0;
  Deletions delete_here, delete_there;
  std::vector<std::string> replaced;  // objects that a released file may need under another name
  std::string unreadable;             // a folder
};

// Errors: unavailable (the directory is not mounted), those of the two listings and of the state, cancelled. Whatever
// was copied before stays and is remembered; nothing is removed.
[[nodiscard]] Result<SweepReport> sweep(const LinkConfig& config, const Location& here, const Location& there,
                                        LinkState& state, Carrier& carrier, const std::stop_token& stop);

// The same in two steps, for tasks that share a sweep: each looks at ranges, and one of them ends it with what all of
// them found. The state has the rows of that range. What was copied is remembered when sweep_range() returns.
[[nodiscard]] Result<SweepFindings> sweep_range(const LinkConfig& config, const Location& here, const Location& there,
                                                LinkState& state, Carrier& carrier, sync::KeyRange& range,
                                                const std::stop_token& stop);
// Brings the rows of paths into the state.
using LoadRows = std::function<Status(const std::vector<std::string>&)>;
// Removes what all ranges left for the end; `report` gets why not, if so.
[[nodiscard]] Status end_sweep(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
                               Carrier& carrier, SweepFindings findings, const LoadRows& load, SweepReport& report,
                               const std::stop_token& stop);
// Whether something came from the bucket.
bool changed_there(const LinkCounts& counts);

// The rules of the config as a filter. Errors: invalid_argument.
[[nodiscard]] Result<sync::Filter> filter_of(const LinkConfig& config);

}  // namespace millrace::link
