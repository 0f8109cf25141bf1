// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts digits into groups of three from the right of their run: 1234567 becomes "1", "234", "567". Command-A (Cohere
// 2) does so with \d{1,3}(?=(?:\d{3})*\b). A regular expression engine reads the rest of the run for each group; this
// code reads a run once. Thread-safe.

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

namespace millrace::tokenizer {

inline constexpr std::string_view kDigitGroupsPattern = R"(\d{1,3}(?=(?:\d{3})*\b))";

// Finds the matches of kDigitGroupsPattern and the text between them, as WordScanner::next_words does. For the
// expression, `piece` is a whole text: a digit before `begin` is part of the run.
size_t next_digit_groups(std::string_view piece, size_t begin, std::span<size_t> ends);

// Calls `part(begin, end, matched)` for each match in `text` and for the text between matches.
void for_each_digit_group(std::string_view text, const std::function<void(size_t, size_t, bool)>& part);

}  // namespace millrace::tokenizer
