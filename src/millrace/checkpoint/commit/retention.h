// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes, after a commit, steps that the rules do not keep, and attempts that will never commit. Called by the
// committer only; free functions that block.

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

// Manifests that were read already, by step, with the version of the object: a long list of steps is read once.
using KnownSteps = std::map<int64_t, std::pair<std::string, StepInfo>>;

struct Retention {
  const KeepRules& keep;
  // The line that the step just committed continues. Other steps below it are left behind and counted apart. nullopt:
  // not known; all steps below it count.
  std::optional<Lineage> line{};
  // Steps that stay for now: a farther tier is being written from their files, or a save to come may refer to them.
  std::vector<int64_t> busy{};
  KnownSteps* known = nullptr;       // where to remember; nullptr: nowhere
  std::function<void()> alive = {};  // called whenever the storage has answered
};

// `step` was just committed by `attempt`. Removes a step's manifest before its files, and empty folders last:
//  - committed steps below `step` that `retention` does not keep, unless a newer attempt committed them or a newer
//    version of the format wrote them;
//  - attempts at `step` that are older than `attempt`;
//  - with `sweep`, at every step: attempts that no manifest names and that are older, or this one at an earlier step
//    (it failed); and unfinished writes of dead processes.
// Files of a newer attempt stay, also in the folder of a step that is removed. So do files that a committed step refers
// to, whatever step or attempt they are of.
// Errors: the first failure, after trying all. The next sweep finds what is left.
[[nodiscard]] Status clean_up(const Location& root, int64_t step, const std::string& attempt,
                              const Retention& retention, bool sweep);

// Whether each of `bases` stays as long as a step that refers to it: it is committed, or another committed step refers
// to it. Errors: not_found naming the one that does not, those of storage.
[[nodiscard]] Status check_bases(const Location& root, std::span<const Ancestor> bases, KnownSteps* known);

}  // namespace millrace::checkpoint
