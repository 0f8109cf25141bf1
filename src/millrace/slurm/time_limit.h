// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses times as Slurm's commands read and print them (sbatch(1), --time). Thread-safe.

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::slurm {

// Returns seconds for "30" (minutes), "30:00" (minutes and seconds), "1:30:00", "2-12", "2-12:30", "2-12:30:00".
// Returns nullopt for "UNLIMITED" and for text that is not a time; is_unlimited() tells the two apart.
std::optional<int64_t> parse_time_limit(std::string_view text);

// Returns whether `text` is "UNLIMITED" or "INFINITE", in upper or lower case.
bool is_unlimited(std::string_view text);

}  // namespace millrace::slurm
