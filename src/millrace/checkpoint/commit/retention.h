// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes, after a commit, steps that the rules do not keep and attempts that will never commit. Only the committer
// calls these free functions, which block.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// Contents of manifests already read, by step, with the version of the manifest's object. Each manifest is read only
// once, however many commits follow.
using KnownSteps = std::map<int64_t, std::pair<std::string, StepInfo>>;

struct Retention {
  const KeepRules& keep;
  // The line that the committed step continues. Lower steps outside this line are left behind, and the rules do not
  // count them. nullopt: the line is not known, and the rules count all lower steps.
  std::optional<Lineage> line{};
  // Steps that stay for now, because a farther tier is being written from their files or a later save may refer to
  // them.
  std::vector<int64_t> busy{};
  KnownSteps* known = nullptr;       // remembers manifests; nullptr: remembers none
  std::function<void()> alive = {};  // called whenever the storage has answered
};

// Cleans up after `attempt` has committed `step`. Removes a step's manifest before its files, and empty folders last:
//  - committed steps below `step` that `retention` does not keep, unless a newer attempt committed them or a newer
//    version of the format wrote them;
//  - attempts at `step` that are older than `attempt`;
//  - with `sweep`, at every step: older attempts that no manifest names, this attempt's files at an earlier step
//    without a manifest (it failed), and unfinished writes of dead processes.
// Files of a newer attempt stay, even in the folder of a step that is removed. Files that a committed step refers to
// stay as well, whatever their step or attempt.
// Errors: the first failure, after trying all. The next sweep tries the remaining files again.
[[nodiscard]] Status clean_up(const Location& root, int64_t step, const std::string& attempt,
                              const Retention& retention, bool sweep);

// Checks that each of `bases` will stay as long as a step refers to it: it is committed, or a committed step already
// refers to it. Errors: not_found naming the base that will not, those of storage.
[[nodiscard]] Status check_bases(const Location& root, std::span<const Ancestor> bases, KnownSteps* known);

}  // namespace millrace::checkpoint
