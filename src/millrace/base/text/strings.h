// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small functions on text. Only ASCII letters change case; all other bytes stay. Pure functions; thread-safe.

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Removes the blanks at both ends. The result is a part of `text`, which must outlive it.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n");

std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);

// Removes the first line from `text` and returns it without "\n" or "\r\n".
std::string_view take_line(std::string_view& text);
// Returns the parts between the separators, at least one; parts may be empty. They are parts of `text`, which must
// outlive them.
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace millrace
