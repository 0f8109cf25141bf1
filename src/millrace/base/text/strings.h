// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small functions on text. Letters are those of ASCII; all other bytes stay. Pure functions; thread-safe.

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Without the blanks at both ends: a part of `text`, which must outlive it.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n");

std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);

// Takes the first line off `text`; what it returns is without "\n" or "\r\n".
std::string_view take_line(std::string_view& text);
// The parts between the separators, empty ones too: at least one. They are parts of `text`, as above.
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace millrace
