// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads JSON as Python's json module writes it, including NaN, Infinity and -Infinity, which JSON lacks. Pure
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

// Parses the text. NaN and the infinities become null. Errors: corruption, with line and column.
[[nodiscard]] Result<Json> parse_python_json(std::string_view text);

// Returns an integer, even if it is written as a whole number with a decimal point ("20.0").
std::optional<int64_t> integer_at(const Json& object, std::string_view key);
std::optional<int64_t> as_integer(const Json& value);

// Flattens the numbers of nested lists. A bool becomes 0 or 1; a null (a NaN) becomes nullopt. `shape` gets the
// lengths of the lists, [] for a plain number. Returns nothing if there are other values, or if lists of one level
// differ in length.
std::optional<std::vector<std::optional<double>>> numbers_of(const Json& value, std::vector<int64_t>& shape);

// Calls visit(line_number, line) for each line of a jsonl text, counted from 1. Blank lines are visited too, but an
// empty last line is not.
void for_each_line(std::string_view text, const std::function<void(int64_t, std::string_view)>& visit);

}  // namespace millrace::lerobot
