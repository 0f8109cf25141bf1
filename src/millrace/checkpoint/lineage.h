// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tells which steps of a folder belong to one line of training (docs/format/checkpoint.md, "The line"). A run that
// goes back to step 500 and saves 550 leaves steps 600 and 700 of its former attempt behind: they stay committed, but
// no restore chooses them. Values and pure functions, except list_step_names. A LineWalk belongs to one thread.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// One stretch of a line: the steps of `attempt` up to `step` that are greater than the step of the previous ancestor.
struct Ancestor {
  std::string attempt;
  int64_t step = 0;
  bool operator==(const Ancestor&) const = default;
};
// The ancestors, oldest first, with ascending steps. The next commit continues from the last one. Empty: a new run.
using Lineage = std::vector<Ancestor>;

// Returns whether `step` of `attempt` belongs to the line.
bool covers(const Lineage& line, std::string_view attempt, int64_t step);
// Returns the part of the line with steps below `step`, for a run that saves a step again.
Lineage lineage_below(Lineage line, int64_t step);
// Returns the line that a save after `step` of `attempt` continues. `line` is the line that the commit of `step`
// continued.
Lineage continue_line(Lineage line, const std::string& attempt, int64_t step);

// A step as a listing of its folder shows it; its manifest is not read.
struct StepNames {
  int64_t step = 0;
  bool is_committed = false;          // it has a manifest
  std::vector<std::string> attempts;  // attempts that have files there
};
// Lists the steps, ascending. Errors: those of listing.
[[nodiscard]] Result<std::vector<StepNames>> list_step_names(const Location& root);

// Walks the steps of the newest line, newest first, and asks for as few manifests as possible:
//
//   while (const auto step = walk.next()) read its manifest, then report the result by read(), damaged() or gone()
//
// The newest attempt's newest step comes first, then its ancestors. Steps that another attempt left behind are
// skipped. A commit of an earlier build has no lineage. Below such a commit, and below a damaged manifest, newer
// attempts come before older ones, and an older attempt's steps come only where they are lower than the newer
// attempt's.
class LineWalk {
 public:
  // Walks the steps of one folder, or of its tiers one after the other. Skips steps that are not committed.
  explicit LineWalk(std::span<const StepNames> names);

  // Returns the next step whose manifest to read; nullopt: there are no more.
  std::optional<int64_t> next();
  // Reports the manifest of the step that next() returned. Returns true when the step is the next of the line. False:
  // it is not, or not yet; call next() again.
  bool read(const std::string& attempt, const std::optional<Lineage>& line);
  void damaged();  // its manifest cannot be used
  void gone();     // its manifest no longer exists

 private:
  struct Entry {
    std::vector<std::string> attempts;
    bool is_known = false;  // the manifest was read; `attempts` holds only its attempt
  };
  // Returns the newest attempt that may have committed `step`; nullptr: none that the line allows.
  const std::string* newest_of(int64_t step, const Entry& entry) const;

  std::map<int64_t, Entry> left_;  // steps not tried yet
  std::optional<Lineage> line_;    // line of the newest step whose manifest was read
  int64_t bound_ = INT64_MAX;      // all further steps are below it
  int64_t at_ = -1;                // the step that next() returned
};

// Returns the ancestors of a commit that has no lineage, and the commit itself. Applies the rule of LineWalk to the
// names alone.
Lineage infer_lineage(std::span<const StepNames> names, const std::string& attempt, int64_t step);

}  // namespace millrace::checkpoint
