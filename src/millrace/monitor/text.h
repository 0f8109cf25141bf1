// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the small texts of /proc and /sys. Thread-safe.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::monitor {

// Returns the number that the file begins with; nullopt for anything else ("max", "N/A").
std::optional<double> read_number(const std::filesystem::path& path);
std::optional<double> to_number(std::string_view text);
std::vector<std::string_view> lines_of(std::string_view text);
// Splits a line at blanks.
std::vector<std::string_view> words_of(std::string_view line);
// Returns the names in a folder, sorted; none if there is no folder.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace millrace::monitor
