// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns a step into a checkpoint (docs/design/checkpoint.md): the committer's part, and the wait of the other ranks.
// Free functions that block; thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct StepCommit {
  const Location& root;
  int64_t step = 0;
  const std::string& attempt;
  int64_t world_size = 1;
  Clock::time_point deadline;
  std::stop_token stop;
  std::function<void()> alive{};  // called between two operations of the storage
  // Checks that the steps that the parts refer to still exist. Called right before the manifest is created.
  std::function<Status(std::span<const Ancestor> bases)> check_bases{};

  Location directory() const { return step_location(root, step).child(attempt); }
};

// The first and the longest pause between two looks of a rank that waits for the step. The first is short, so a small
// save commits at once. With the longest pause, all `lookers` together ask the storage about a thousand times a
// second.
struct LookPauses {
  std::chrono::milliseconds first, longest;
};
[[nodiscard]] LookPauses look_pauses(int64_t lookers);

// Checks that `attempt` may commit the step now. A manifest that cannot be read does not prevent the commit. Errors:
// already_exists (committed by an attempt that is not older), unsupported (by a newer Millrace), those of storage.
[[nodiscard]] Status check_step_open(const Location& root, int64_t step, const std::string& attempt);

// Waits for the part records of all ranks, checks that they fit together, and creates the manifest, durable. `own` is
// the part of the calling rank, which is not read back. `line` is the line that the step continues.
// Errors: that of a rank that failed, naming it and the cause, timeout naming the missing ranks, corruption (records
// that do not fit together), cancelled, those of check_step_open.
[[nodiscard]] Status commit_step(const StepCommit& commit, WrittenRecord own, std::string state, StepMetrics metrics,
                                 std::optional<Lineage> line);

// Waits until the manifest of this attempt is there, and makes it durable. Errors: timeout, cancelled, already_exists;
// the cause for which rank 0 gave up the step, as soon as it has.
[[nodiscard]] Status await_commit(const StepCommit& commit);

// Gives a tier of one node the manifest that this attempt committed in the tier `from`, durable. Returns whether this
// call created it; another rank of the node may have been faster. Errors: not_found and corruption (no such manifest
// there), already_exists, those of storage.
[[nodiscard]] Result<bool> adopt_manifest(const StepCommit& commit, const Location& from);

}  // namespace millrace::checkpoint
