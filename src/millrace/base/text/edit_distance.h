// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures how close a mistyped name is to a known one. A pure function; thread-safe.

#include <cstddef>
#include <string_view>

namespace millrace {

// Returns the fewest letters to insert, remove or change to turn `a` into `b`, ignoring case (Levenshtein distance).
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace millrace
