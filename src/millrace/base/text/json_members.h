// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads members of JSON objects that other programs wrote. A member of the wrong type counts as missing. json_fields.h
// reads documents that Millrace wrote. Thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// Returns the member, or null if `object` is no object or has no such member. These functions take nlohmann::json and
// ordered_json.
template <class Json>
const Json* member(const Json& object, std::string_view key);
// Returns the value of a member, if it has that type.
template <class Json>
std::optional<std::string> text_at(const Json& object, std::string_view key);
template <class Json>
std::optional<int64_t> integer_at(const Json& object, std::string_view key);
template <class Json>
std::optional<double> number_at(const Json& object, std::string_view key);
template <class Json>
std::optional<bool> bool_at(const Json& object, std::string_view key);
// Returns the text of a member; empty if the member is no text.
template <class Json>
std::string text_or_empty(const Json& object, std::string_view key) {
  return text_at(object, key).value_or(std::string());
}

}  // namespace millrace
