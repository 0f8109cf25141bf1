// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/text/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
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

JsonFields::JsonFields(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {
  check(object_.is_object(), "", "an object");
}

bool JsonFields::has(std::string_view key) const {
  return member(object_, key) != nullptr;
}

const nlohmann::json& JsonFields::at(std::string_view key) const {
  static const nlohmann::json kNone;
  const nlohmann::json* value = member(object_, key);
  return value == nullptr ? kNone : *value;
}

int64_t JsonFields::count(std::string_view key) {
  const auto value = integer_at(object_, key);
  const bool good = value && *value >= 0 && *value <= kMostCount;
  check(good, key, "a whole number from 0 to 2^53");
  return good ? *value : 0;
}

int64_t JsonFields::integer(std::string_view key, int64_t lowest) {
  const auto value = integer_at(object_, key);
  const bool good = value && *value >= lowest;
  if (!good) check(false, key, lowest == INT64_MIN ? "a whole number" : fmt::format("a whole number from {}", lowest));
  return good ? *value : 0;
}

uint64_t JsonFields::natural(std::string_view key) {
  const nlohmann::json& value = at(key);
  check(value.is_number_unsigned(), key, "a whole number from 0");
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

std::string JsonFields::text(std::string_view key) {
  auto value = text_at(object_, key);
  check(value.has_value(), key, "a string");
  return std::move(value).value_or("");
}

bool JsonFields::boolean(std::string_view key) {
  const auto value = bool_at(object_, key);
  check(value.has_value(), key, "true or false");
  return value.value_or(false);
}

Hash128 JsonFields::hash(std::string_view key) {
  const auto value = hash128_from_hex(text(key));
  check(value.has_value(), key, "32 hexadecimal digits");
  return value.value_or(Hash128{});
}

std::vector<double> JsonFields::numbers(std::string_view key) {
  const nlohmann::json& list = at(key);
  const bool good = list.is_array() && std::ranges::all_of(list, [](const auto& value) { return value.is_number(); });
  check(good, key, "a list of numbers");
  return good ? list.get<std::vector<double>>() : std::vector<double>();
}

void JsonFields::object(std::string_view key, const std::function<void(JsonFields&)>& read) {
  read_at(at(key), fmt::format("{}{}.", path_, key), read);
}

void JsonFields::each(std::string_view key, const std::function<void(JsonFields&)>& read) {
  const nlohmann::json& list = at(key);
  if (!list.is_array()) return check(false, key, "a list");
  for (size_t i = 0; i < list.size(); ++i) read_at(list[i], fmt::format("{}{}[{}].", path_, key, i), read);
}

void JsonFields::read_at(const nlohmann::json& value, std::string path, const std::function<void(JsonFields&)>& read) {
  JsonFields fields(value, std::move(path));
  read(fields);
  if (error_.empty()) error_ = fields.error_;
}

void JsonFields::check(bool good, std::string_view key, std::string_view expected) {
  if (!good && error_.empty()) error_ = fmt::format("{}{} is not {}", path_, key, expected);
}

}  // namespace millrace
