// SPDX-License-Identifier: Apache-2.0
#pragma once

// Commits a rank's part of a save in one tier. Free functions that block; thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>

#include "millrace/base/status.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/save/save.h"
#include "millrace/checkpoint/save/saver_core.h"

namespace millrace::checkpoint {

// Updates `latest` and removes older steps, after `save` was committed in the tier `at`. A failure is a warning in the
// log, and a later save tries again.
void follow_up(Core& core, size_t at, Save& save, const std::optional<Lineage>& line);

// Makes the arguments of commit_part() for `step` in the tier `at`. The deadline counts from this call.
StepCommit commit_in(Core& core, size_t at, int64_t step, std::stop_token stop, std::function<void()> alive = {});

// Commits this rank's part. Rank 0 creates the manifest when all parts are there; the other ranks wait for the
// manifest.
[[nodiscard]] Status commit_part(const Core& core, const StepCommit& commit, WrittenRecord record,
                                 const Documents& documents);

// Writes the cause of this rank's failure into the tier, for the other ranks. If this write fails as well, the other
// ranks wait for `commit_timeout`.
void tell_of_failure(const Core& core, size_t tier, int64_t step, const Error& cause);

}  // namespace millrace::checkpoint
