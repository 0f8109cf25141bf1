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

// Moves `latest` and removes older steps, after `save` was committed in the tier `at`. A failure is a warning in the
// log, and a later save tries it again.
void follow_up(Core& core, size_t at, Save& save, const std::optional<Lineage>& line);

// The arguments of commit_part() for `step` in the tier `at`. Its deadline counts from now on.
StepCommit commit_in(Core& core, size_t at, int64_t step, std::stop_token stop, std::function<void()> alive = {});

// Rank 0 creates the manifest when all parts are there. The other ranks wait for it.
[[nodiscard]] Status commit_part(const Core& core, const StepCommit& commit, WrittenRecord record,
                                 const Documents& documents);

// Writes into the tier why this rank fails there, for the other ranks. When that fails, too, they wait for
// `commit_timeout`.
void tell_of_failure(const Core& core, size_t tier, int64_t step, const Error& cause);

}  // namespace millrace::checkpoint
