// SPDX-License-Identifier: Apache-2.0
#pragma once

// The file that a rank writes to the folder of its attempt when its part of a step will never come. The other ranks
// read it and stop waiting (docs/format/checkpoint.md). It belongs to no commit, and a sweep removes it. Free functions
// that block; thread-safe.

#include <cstdint>
#include <optional>

#include "millrace/base/status.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// Writes the file. `attempt`: the attempt's folder. Errors: those of storage.
[[nodiscard]] Status write_failure(const Location& attempt, const RankPlaces& places, int64_t rank, const Error& cause);

// Reads the failure of `rank`: its host and cause, with the cause's code. nullopt: the rank reported none. Errors:
// those of storage.
[[nodiscard]] Result<std::optional<Error>> read_failure(const Location& attempt, const RankPlaces& places,
                                                        int64_t rank);

}  // namespace millrace::checkpoint
