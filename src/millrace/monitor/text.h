// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the small texts of /proc and /sys. Thread-safe.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::monitor {

// The number that the file begins with; nullopt for anything else ("max", "N/A").
std::optional<double> read_number(const std::filesystem::path& path);
std::optional<double> to_number(std::string_view text);
std::vector<std::string_view> lines_of(std::string_view text);
// Split at blanks.
std::vector<std::string_view> words_of(std::string_view line);
// Names in a folder, sorted; none when there is no folder.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace millrace::monitor
