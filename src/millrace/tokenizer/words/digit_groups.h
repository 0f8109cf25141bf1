// SPDX-License-Identifier: Apache-2.0
#pragma once

// Digits in groups of three from the right of their run, "1", "234", "567" of 1234567, as Command-A (Cohere 2) cuts
// them: \d{1,3}(?=(?:\d{3})*\b). A regular expression engine looks through the rest of the run for each group; this
// looks through a run once. Thread-safe.

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

namespace millrace::tokenizer {

inline constexpr std::string_view kDigitGroupsPattern = R"(\d{1,3}(?=(?:\d{3})*\b))";

// The matches of kDigitGroupsPattern and what lies between them, as WordScanner::next_words. `piece` is a whole text
// for the expression: a digit before `begin` is part of the run.
size_t next_digit_groups(std::string_view piece, size_t begin, std::span<size_t> ends);

// Calls `part(begin, end, matched)` for each match in `text` and for what lies between two.
void for_each_digit_group(std::string_view text, const std::function<void(size_t, size_t, bool)>& part);

}  // namespace millrace::tokenizer
