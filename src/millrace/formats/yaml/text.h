// SPDX-License-Identifier: Apache-2.0
#pragma once

// The letters of a YAML file before they are parsed. Thread-safe.

#include "millrace/formats/yaml/yaml.h"

namespace millrace::yaml {

// Lines end at \n, \r\n or \r; the views are of `text`.
std::vector<std::string_view> split_lines(std::string_view text);

// Code points of well-formed UTF-8.
int64_t characters(std::string_view text);

// The ASCII character at `at`, 0 where there is none.
char character_at(std::string_view text, const Place& at);

// `text` as well-formed UTF-8 with the same lines and columns, without the characters that YAML forbids (U+FFFD is in
// their place, a tab is kept); what was found is added to `problems`, one for each kind.
std::string clean_text(std::string_view text, std::vector<Problem>& problems);

}  // namespace millrace::yaml
