// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses tables as squeue and sacct print them: one record per line, fields separated by '|'. Pure functions.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/text/strings.h"

namespace millrace::slurm {

// Returns the first `most` - 1 fields, and the rest of the line, which may contain separators, as the last one.
std::vector<std::string_view> fields_of(std::string_view line, size_t most);

// Parses a whole number; nullopt if `text` has anything else.
std::optional<int64_t> whole_number(std::string_view text);

// Calls take(line) for each line that is not blank, until one fails.
template <class Take>
[[nodiscard]] Status for_each_line(std::string_view text, Take take) {
  for (const std::string_view line : split(text, '\n')) {
    if (trimmed(line).empty()) continue;
    RETURN_IF_ERROR(take(line));
  }
  return {};
}

}  // namespace millrace::slurm
