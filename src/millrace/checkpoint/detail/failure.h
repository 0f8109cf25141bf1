// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a rank leaves in the folder of its attempt when its part of a step will never come, so that the others need not
// wait for it (docs/format/checkpoint.md). No part and no part of a commit; a sweep removes it with the rest. Free
// functions that block; thread-safe.

#include <cstdint>
#include <optional>

#include "millrace/base/status.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// `attempt`: the folder. Errors: those of storage.
[[nodiscard]] Status write_failure(const Location& attempt, const RankPlaces& places, int64_t rank, const Error& cause);

// What the rank left: its host and cause, with the cause's code. nullopt: nothing. Errors: those of storage.
[[nodiscard]] Result<std::optional<Error>> read_failure(const Location& attempt, const RankPlaces& places,
                                                        int64_t rank);

}  // namespace millrace::checkpoint
