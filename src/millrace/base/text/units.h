// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses and formats numbers with units, as people type and read them. GB = 1e9 bytes, GiB = 2^30 bytes.
// slurm/time_limit.h parses Slurm's form of times. Thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace {

// Parses "4096", "64MiB", "1.5 GB", "2G" (= GB). Errors: invalid_argument.
[[nodiscard]] Result<int64_t> parse_bytes(std::string_view text);
// Parses "140ms", "90s", "30m" (or "30min"), "1.5h", "3d", "2w"; a plain number is seconds. Errors: invalid_argument.
[[nodiscard]] Result<std::chrono::duration<double>> parse_duration(std::string_view text);
// Parses a number of digits only; nullopt for any other text.
std::optional<int64_t> parse_whole(std::string_view text);
std::string format_bytes(int64_t bytes);      // "1.50 GB"
std::string format_rate(double bytes_per_s);  // "312 MB/s"
std::string format_count(int64_t count);      // "1,234,567"
std::string format_duration(double seconds);  // "1m 04s", "0.43 s"

}  // namespace millrace
