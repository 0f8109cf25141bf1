// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which steps of a folder belong to one line of training (docs/format/checkpoint.md, "The line"). A run that goes back
// to step 500 and saves 550 leaves 600 and 700 of its former attempt behind: they stay committed, and no restore
// chooses them. Values and pure functions, but for list_step_names; a LineWalk belongs to one thread.

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

// One stretch of a line: the steps of `attempt` up to `step`, above the step of the ancestor before it.
struct Ancestor {
  std::string attempt;
  int64_t step = 0;
  bool operator==(const Ancestor&) const = default;
};
// Oldest first; the steps ascend. The last one is the commit that the next one continues from. Empty: a new run.
using Lineage = std::vector<Ancestor>;

// Whether `step` of `attempt` is one of the ancestors.
bool covers(const Lineage& line, std::string_view attempt, int64_t step);
// The ancestors with steps below `step` only, for a run that saves a step again.
Lineage lineage_below(Lineage line, int64_t step);
// The line that a save after `step` of `attempt` continues. `line` is the one that the commit of `step` continued.
Lineage continue_line(Lineage line, const std::string& attempt, int64_t step);

// A step as its folder shows it, without its manifest being read.
struct StepNames {
  int64_t step = 0;
  bool is_committed = false;          // it has a manifest
  std::vector<std::string> attempts;  // attempts that have files there
};
// Ascending. Errors: those of listing.
[[nodiscard]] Result<std::vector<StepNames>> list_step_names(const Location& root);

// Goes through the steps of the newest line, the newest first, and asks for as few manifests as it can:
//
//   while (const auto step = walk.next()) read its manifest, then say what was found, by one of the three functions
//
// The newest attempt's newest step comes first, then its ancestors. Steps that another attempt left behind never come.
// A commit of an earlier build has no lineage. Below it, and below a damaged manifest, newer attempts come before older
// ones, and an older attempt's steps come only where they are below the newer one's.
class LineWalk {
 public:
  // Walks the steps of one folder, or of its tiers one after the other. Skips steps that are not committed.
  explicit LineWalk(std::span<const StepNames> names);

  // nullopt: there are no more.
  std::optional<int64_t> next();
  // The manifest of the step that next() returned. True: the step is the next of the line. False: it is not, or not
  // yet; next() goes on.
  bool read(const std::string& attempt, const std::optional<Lineage>& line);
  void damaged();  // it is of the line, and cannot be used
  void gone();     // there is no manifest any more

 private:
  struct Entry {
    std::vector<std::string> attempts;
    bool is_known = false;  // the one attempt is that of the manifest
  };
  // The newest attempt that may have committed it; nullptr: none that the line allows.
  const std::string* newest_of(int64_t step, const Entry& entry) const;

  std::map<int64_t, Entry> left_;  // not tried yet
  std::optional<Lineage> line_;    // line of the newest step whose manifest was read
  int64_t bound_ = INT64_MAX;      // later ones have lower steps
  int64_t at_ = -1;                // the step that next() returned
};

// The ancestors of a commit without a lineage, and the commit itself, by the rule of LineWalk from the names alone.
Lineage infer_lineage(std::span<const StepNames> names, const std::string& attempt, int64_t step);

}  // namespace millrace::checkpoint
