// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/text/json_members.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace millrace {

template <class Json>
const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

template <class Json>
std::optional<std::string> text_at(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  return found != nullptr && found->is_string() ? std::optional(found->template get<std::string>()) : std::nullopt;
}

template <class Json>
std::optional<int64_t> integer_at(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  if (found == nullptr || !found->is_number_integer()) return std::nullopt;
  if (found->is_number_unsigned() && std::cmp_greater(found->template get<uint64_t>(), INT64_MAX)) return std::nullopt;
  return found->template get<int64_t>();
}

template <class Json>
std::optional<double> number_at(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  return found != nullptr && found->is_number() ? std::optional(found->template get<double>()) : std::nullopt;
}

template <class Json>
std::optional<bool> bool_at(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  return found != nullptr && found->is_boolean() ? std::optional(found->template get<bool>()) : std::nullopt;
}

template const nlohmann::json* member(const nlohmann::json&, std::string_view);
template std::optional<std::string> text_at(const nlohmann::json&, std::string_view);
template std::optional<int64_t> integer_at(const nlohmann::json&, std::string_view);
template std::optional<double> number_at(const nlohmann::json&, std::string_view);
template std::optional<bool> bool_at(const nlohmann::json&, std::string_view);
template const nlohmann::ordered_json* member(const nlohmann::ordered_json&, std::string_view);
template std::optional<std::string> text_at(const nlohmann::ordered_json&, std::string_view);
template std::optional<int64_t> integer_at(const nlohmann::ordered_json&, std::string_view);
template std::optional<double> number_at(const nlohmann::ordered_json&, std::string_view);
template std::optional<bool> bool_at(const nlohmann::ordered_json&, std::string_view);

}  // namespace millrace
