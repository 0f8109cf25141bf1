// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/text/json_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace {
namespace {

using Value = simdjson::dom::element;

template <class T>
std::optional<T> as(const Value& value) {
  T taken{};
  return value.get(taken) == simdjson::SUCCESS ? std::optional(taken) : std::nullopt;
}

bool same(const Value& a, const Value& b) {
  using Type = simdjson::dom::element_type;
  if (a.type() == Type::DOUBLE || b.type() == Type::DOUBLE) {  // an integer may be the same number
    const auto left = as<double>(a), right = as<double>(b);
    return left && right && *left == *right;
  }
  if (a.type() != b.type()) return false;
  if (a.type() == Type::INT64) return as<int64_t>(a) == as<int64_t>(b);
  if (a.type() == Type::UINT64) return as<uint64_t>(a) == as<uint64_t>(b);
  if (a.type() == Type::STRING) return as<std::string_view>(a) == as<std::string_view>(b);
  if (a.type() == Type::BOOL) return as<bool>(a) == as<bool>(b);
  if (a.type() == Type::ARRAY) {
    const auto left = *as<simdjson::dom::array>(a), right = *as<simdjson::dom::array>(b);
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
  }
  if (a.type() != Type::OBJECT) return true;  // null
  const auto left = *as<simdjson::dom::object>(a), right = *as<simdjson::dom::object>(b);
  if (left.size() != right.size()) return false;
  return std::all_of(left.begin(), left.end(), [&](const auto& member) {
    Value found;
    return right.at_key(member.key).get(found) == simdjson::SUCCESS && same(member.value, found);
  });
}

}  // namespace

Result<JsonDocument> JsonDocument::parse(std::string_view text) {
  if (text.empty()) return fail(ErrorCode::kCorruption, "not JSON: it is empty");
  JsonDocument document;
  document.values_ = std::make_unique<simdjson::dom::document>();
  simdjson::dom::parser parser;  // ends here, with the places of all brackets and commas
  const auto parsed = parser.parse_into_document(*document.values_, text.data(), text.size()).get(document.root_);
  if (parsed != simdjson::SUCCESS) return fail(ErrorCode::kCorruption, "not JSON: {}", simdjson::error_message(parsed));
  if (!document.root_.is_object()) return fail(ErrorCode::kCorruption, "not a JSON object");
  return document;
}

bool JsonDocument::operator==(const JsonDocument& other) const {
  return same(root_, other.root_);
}

JsonFields::JsonFields(const JsonDocument& document) : object_(as<simdjson::dom::object>(document.root_)) {}

JsonFields::JsonFields(const Value& value, const JsonFields& parent, std::string& error, std::string_view key,
                       size_t index)
    : object_(as<simdjson::dom::object>(value)), parent_(&parent), key_(key), index_(index), error_(error) {
  check(object_.has_value(), "", "an object");
}

std::optional<Value> JsonFields::find(std::string_view key) const {
  Value value;
  if (!object_ || object_->at_key(key).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

std::optional<Value> JsonFields::require(std::string_view key) {
  const auto value = find(key);
  if (!value && ok()) error_ = field(key) + " is missing";
  return value;
}

// The member, if it is there and a T. The caller says what it is not.
template <class T>
std::optional<T> JsonFields::at(std::string_view key) {
  const auto value = require(key);
  return value ? as<T>(*value) : std::nullopt;
}

bool JsonFields::has(std::string_view key) const {
  return find(key).has_value();
}

bool JsonFields::is(std::string_view key, std::string_view text) const {
  const auto value = find(key);
  return value && as<std::string_view>(*value) == text;
}

std::vector<std::string_view> JsonFields::keys() const {
  std::vector<std::string_view> keys;
  if (object_)
    for (const auto& member : *object_) keys.push_back(member.key);
  return keys;
}

std::string JsonFields::json(std::string_view key) const {
  const auto value = find(key);
  return value ? simdjson::minify(*value) : "null";
}

size_t JsonFields::size(std::string_view key) const {
  const auto value = find(key);
  const auto list = value ? as<simdjson::dom::array>(*value) : std::nullopt;
  return list ? list->size() : 0;
}

int64_t JsonFields::count(std::string_view key) {
  const auto value = at<int64_t>(key);
  const bool good = value && *value >= 0 && *value <= kMostCount;
  check(good, key, "a whole number from 0 to 2^53");
  return good ? *value : 0;
}

int64_t JsonFields::integer(std::string_view key, int64_t low, int64_t high) {
  const auto value = at<int64_t>(key);
  if (value && *value >= low && *value <= high) return *value;
  if (high != INT64_MAX)
    check(false, key, fmt::format("a whole number in [{}, {}]", low, high));
  else
    check(false, key, low == INT64_MIN ? "a whole number" : fmt::format("a whole number from {}", low));
  return low;
}

uint64_t JsonFields::natural(std::string_view key) {
  const auto value = at<uint64_t>(key);
  check(value.has_value(), key, "a whole number from 0");
  return value.value_or(0);
}

std::string JsonFields::text(std::string_view key) {
  const auto value = at<std::string_view>(key);
  check(value.has_value(), key, "a string");
  return std::string(value.value_or(""));
}

bool JsonFields::boolean(std::string_view key) {
  const auto value = at<bool>(key);
  check(value.has_value(), key, "true or false");
  return value.value_or(false);
}

Hash128 JsonFields::hash(std::string_view key) {
  const auto text = at<std::string_view>(key);
  const auto value = text ? hash128_from_hex(*text) : std::nullopt;
  check(value.has_value(), key, "32 hexadecimal digits");
  return value.value_or(Hash128{});
}

// Calls `take` with each value of a list until one is wrong.
template <class Take>
void JsonFields::values(std::string_view key, std::string_view expected, Take&& take) {
  const auto list = at<simdjson::dom::array>(key);
  check(list.has_value(), key, expected);
  if (!list) return;
  for (const Value value : *list) {
    if (!ok()) return;
    take(value);
  }
}

std::vector<Hash128> JsonFields::hashes(std::string_view key) {
  constexpr std::string_view kExpected = "a list of 32 hexadecimal digits each";
  std::vector<Hash128> hashes;
  values(key, kExpected, [&](const Value& value) {
    const auto text = as<std::string_view>(value);
    const auto hash = text ? hash128_from_hex(*text) : std::nullopt;
    check(hash.has_value(), key, kExpected);
    hashes.push_back(hash.value_or(Hash128{}));
  });
  return hashes;
}

std::vector<int64_t> JsonFields::integers(std::string_view key) {
  constexpr std::string_view kExpected = "a list of whole numbers from 0";
  std::vector<int64_t> integers;
  values(key, kExpected, [&](const Value& value) {
    const auto number = as<int64_t>(value);
    const bool good = number && *number >= 0;
    check(good, key, kExpected);
    integers.push_back(good ? *number : 0);
  });
  return integers;
}

std::vector<double> JsonFields::numbers(std::string_view key) {
  constexpr std::string_view kExpected = "a list of numbers";
  std::vector<double> numbers;
  values(key, kExpected, [&](const Value& value) {
    const auto number = as<double>(value);
    check(number.has_value(), key, kExpected);
    numbers.push_back(number.value_or(0));
  });
  return numbers;
}

std::vector<std::pair<std::string, std::string>> JsonFields::texts(std::string_view key) {
  constexpr std::string_view kExpected = "an object of strings";
  std::vector<std::pair<std::string, std::string>> texts;
  const auto object = at<simdjson::dom::object>(key);
  check(object.has_value(), key, kExpected);
  if (!object) return texts;
  for (const auto& member : *object) {
    const auto text = as<std::string_view>(member.value);
    check(text.has_value(), key, kExpected);
    texts.emplace_back(member.key, text.value_or(""));
  }
  return texts;
}

void JsonFields::object(std::string_view key, const std::function<void(JsonFields&)>& read) {
  const auto value = require(key);
  if (!value) return;
  JsonFields fields(*value, *this, error_, key, kNoIndex);
  read(fields);
}

void JsonFields::each(std::string_view key, const std::function<void(JsonFields&)>& read) {
  size_t index = 0;
  values(key, "a list", [&](const Value& value) {
    JsonFields fields(value, *this, error_, key, index++);
    read(fields);
  });
}

void JsonFields::check(bool good, std::string_view key, std::string_view expected) {
  if (!good && ok()) error_ = fmt::format("{} is not {}", field(key), expected);
}

void JsonFields::fail_with(std::string_view reason) {
  if (ok()) error_ = parent_ == nullptr ? std::string(reason) : fmt::format("{}: {}", field(""), reason);
}

// Where a field is, or with an empty key this object: "options.lanes", "tensors[0] 'a': dtype".
std::string JsonFields::field(std::string_view key) const {
  std::string place;
  if (parent_ != nullptr) place = parent_->field(key_);
  if (index_ != kNoIndex) place += fmt::format("[{}]", index_);
  const auto name = index_ != kNoIndex ? find("name") : std::nullopt;
  const auto text = name ? as<std::string_view>(*name) : std::nullopt;
  if (text) place += fmt::format(" '{}'", *text);
  if (!key.empty() && !place.empty()) place += text ? ": " : ".";
  return place.append(key);
}

}  // namespace millrace
