// SPDX-License-Identifier: Apache-2.0
#pragma once

// A JSON value of a tokenizer.json with its place in the file, for messages. Private to the tokenizer_json*.cpp files.
// Not thread-safe; valid while its parser lives.

#include <simdjson.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

struct JsonNode {
  static constexpr std::string_view kRoot = "the file";

  simdjson::dom::element value;
  std::string place{kRoot};

  tl::unexpected<Error> wrong(std::string_view expected) const {
    return fail(ErrorCode::kInvalidArgument, "{}: expected {}", place, expected);
  }
  tl::unexpected<Error> unsupported(std::string_view what) const {
    return fail(ErrorCode::kUnsupported, "{}: {} is not supported", place, what);
  }

  bool is_object() const { return value.is_object(); }
  bool has(std::string_view key) const { return value.is_object() && !value.at_key(key).error(); }

  // Returns a field; nullopt if it is absent. A null counts as present, and most accessors reject it.
  [[nodiscard]] Result<std::optional<JsonNode>> find(std::string_view key) const {
    simdjson::dom::object fields;
    if (value.get(fields) != simdjson::SUCCESS) return wrong("an object");
    simdjson::dom::element field;
    if (fields.at_key(key).get(field) != simdjson::SUCCESS) return std::nullopt;
    return JsonNode{field, place == kRoot ? std::string(key) : fmt::format("{}.{}", place, key)};
  }
  // Returns a field; nullopt if it is absent or null.
  [[nodiscard]] Result<std::optional<JsonNode>> find_value(std::string_view key) const {
    ASSIGN_OR_RETURN(auto field, find(key));
    return field && field->value.is_null() ? std::nullopt : std::move(field);
  }
  [[nodiscard]] Result<JsonNode> at(std::string_view key) const {
    ASSIGN_OR_RETURN(auto field, find(key));
    if (!field) return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is missing", place, key);
    return std::move(*field);
  }

  [[nodiscard]] Result<bool> boolean() const {
    bool result = false;
    if (value.get(result) != simdjson::SUCCESS) return wrong("true or false");
    return result;
  }
  [[nodiscard]] Result<std::string_view> text() const {
    std::string_view result;
    if (value.get(result) != simdjson::SUCCESS) return wrong("a string");
    return result;
  }
  // Returns the character of a string that has only one.
  [[nodiscard]] Result<uint32_t> character() const {
    ASSIGN_OR_RETURN(const auto characters, text());
    // SAFETY: uint8_t may alias any object.
    const auto begin = reinterpret_cast<const uint8_t*>(characters.data());
    const CodePoint c = characters.empty() ? CodePoint{} : decode_code_point(begin, begin + characters.size());
    if (characters.empty() || c.size != characters.size()) return wrong("one character");
    return c.value;
  }
  [[nodiscard]] Result<uint64_t> count() const {
    uint64_t result = 0;
    if (value.get(result) != simdjson::SUCCESS) return wrong("a number that is not negative");
    return result;
  }
  [[nodiscard]] Result<uint32_t> id() const {
    uint64_t result = 0;
    if (value.get(result) != simdjson::SUCCESS || result >= std::numeric_limits<uint32_t>::max())
      return wrong("a token id");
    return static_cast<uint32_t>(result);
  }
  [[nodiscard]] Result<std::vector<JsonNode>> items() const {
    simdjson::dom::array elements;
    if (value.get(elements) != simdjson::SUCCESS) return wrong("an array");
    std::vector<JsonNode> result;
    for (const simdjson::dom::element item : elements)
      result.push_back({item, fmt::format("{}[{}]", place, result.size())});
    return result;
  }

  // Returns the only field of an object: its name, which selects the kind, and its value.
  [[nodiscard]] Result<std::pair<std::string_view, JsonNode>> choice() const {
    simdjson::dom::object fields;
    if (value.get(fields) != simdjson::SUCCESS || fields.size() != 1) return wrong("an object of one field");
    const auto field = *fields.begin();
    return std::pair(field.key, JsonNode{field.value, fmt::format("{}.{}", place, field.key)});
  }

  [[nodiscard]] Result<bool> bool_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.boolean();
  }
  [[nodiscard]] Result<bool> bool_at(std::string_view key, bool when_absent) const {
    ASSIGN_OR_RETURN(const auto field, find(key));
    return field ? field->boolean() : when_absent;
  }
  [[nodiscard]] Result<bool> bool_or_null_at(std::string_view key, bool when_absent) const {
    ASSIGN_OR_RETURN(const auto field, find_value(key));
    return field ? field->boolean() : when_absent;
  }
  [[nodiscard]] Result<uint64_t> count_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.count();
  }
  [[nodiscard]] Result<uint32_t> id_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.id();
  }
  [[nodiscard]] Result<std::string_view> text_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.text();
  }
  [[nodiscard]] Result<std::vector<JsonNode>> items_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto field, at(key));
    return field.items();
  }
  [[nodiscard]] Result<std::vector<uint32_t>> ids_at(std::string_view key) const {
    ASSIGN_OR_RETURN(const auto items, items_at(key));
    std::vector<uint32_t> ids;
    for (const JsonNode& item : items) {
      ASSIGN_OR_RETURN(const auto id, item.id());
      ids.push_back(id);
    }
    return ids;
  }
  // Returns the "type" of a component; empty in files that were written before the field existed.
  [[nodiscard]] Result<std::string_view> type() const {
    ASSIGN_OR_RETURN(const auto field, find("type"));
    return field ? field->text() : std::string_view();
  }
};

}  // namespace millrace::tokenizer
