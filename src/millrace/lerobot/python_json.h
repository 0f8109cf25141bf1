// SPDX-License-Identifier: Apache-2.0
#pragma once

// JSON as Python's json module writes it: NaN, Infinity and -Infinity stand for numbers that JSON has not. Pure
// functions; thread-safe.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/text/json_members.h"

namespace millrace::lerobot {

using Json = nlohmann::ordered_json;

// NaN and the infinities become null, which is not_finite() of a number. Errors: corruption, with line and column.
[[nodiscard]] Result<Json> parse_python_json(std::string_view text);

// An integer, also when it is written as a whole number with a point ("20.0").
std::optional<int64_t> integer_at(const Json& object, std::string_view key);
std::optional<int64_t> as_integer(const Json& value);

// All numbers of nested lists, flattened; a bool is 0 or 1, null (a NaN) stays nothing. `shape` gets the lengths of
// the lists, [] for a plain number. Nothing where there is something else, or lists of one level differ in length.
std::optional<std::vector<std::optional<double>>> numbers_of(const Json& value, std::vector<int64_t>& shape);

// Calls visit(line_number from 1, line) for each line of a jsonl text, blank ones too, but for an empty end.
void for_each_line(std::string_view text, const std::function<void(int64_t, std::string_view)>& visit);

}  // namespace millrace::lerobot
