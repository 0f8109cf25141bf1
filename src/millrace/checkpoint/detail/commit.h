// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a step becomes a checkpoint (docs/design/checkpoint.md): the committer's side and the side of those who wait for
// it. Free functions that block; thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/base/sync.h"
#include "millrace/checkpoint/detail/records.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct StepCommit {
  const Location& root;
  int64_t step = 0;
  const std::string& attempt;
  int64_t world_size = 1;
  Clock::time_point deadline;
  std::stop_token stop;
};

// Whether `attempt` may commit the step as things are now. A manifest that cannot be read is in nobody's way.
// Errors: already_exists (committed by an attempt that is not older), unsupported (by a newer Millrace), those of
// storage.
[[nodiscard]] Status check_step_open(const Location& root, int64_t step, const std::string& attempt);

// Waits for the part records of all ranks, checks that they make one whole, and creates the manifest, durable.
// Errors: timeout naming the missing ranks, corruption (records that do not fit together), cancelled, those of
// check_step_open.
[[nodiscard]] Status commit_step(const StepCommit& commit, std::string state);

// Waits until the manifest of this attempt is there, and makes it durable. Errors: timeout, cancelled, already_exists.
[[nodiscard]] Status await_commit(const StepCommit& commit);

}  // namespace millrace::checkpoint
