// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prepares the text of a YAML file for parsing. Thread-safe.

#include "millrace/formats/yaml/yaml.h"

namespace millrace::yaml {

// Splits `text` into lines, which end at \n, \r\n or \r. The lines point into `text`.
std::vector<std::string_view> split_lines(std::string_view text);

// Returns the number of code points of well-formed UTF-8.
int64_t characters(std::string_view text);

// Returns the ASCII character at `at`; 0: there is none.
char character_at(std::string_view text, const Place& at);

// Returns `text` as well-formed UTF-8 with the same lines and columns. Replaces characters that YAML forbids by
// U+FFFD; keeps tabs. Adds the problems found to `problems`, one for each kind.
std::string clean_text(std::string_view text, std::vector<Problem>& problems);

}  // namespace millrace::yaml
