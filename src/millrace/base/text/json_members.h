// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads members of JSON objects that other programs wrote. A member of the wrong type counts as missing. json_fields.h
// reads our own documents. Thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// The member, or null where `object` is no object or has none. These take nlohmann::json and ordered_json.
template <class Json>
const Json* member(const Json& object, std::string_view key);
// The value of a member, if it has that type.
template <class Json>
std::optional<std::string> text_at(const Json& object, std::string_view key);
template <class Json>
std::optional<int64_t> integer_at(const Json& object, std::string_view key);
template <class Json>
std::optional<double> number_at(const Json& object, std::string_view key);
template <class Json>
std::optional<bool> bool_at(const Json& object, std::string_view key);
// Empty where the member is no text.
template <class Json>
std::string text_or_empty(const Json& object, std::string_view key) {
  return text_at(object, key).value_or(std::string());
}

}  // namespace millrace
