// SPDX-License-Identifier: Apache-2.0
#pragma once

// JSON as the records are written and read (docs/format/checkpoint.md): canonical text out, fields with a reason in.
// For sources of this room only, since it needs simdjson. Values; for one thread.

#include <fmt/format.h>
#include <simdjson.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/hash/hash.h"

namespace millrace::checkpoint {

using Json = simdjson::dom::element;

inline constexpr size_t kHexDigits = 32;  // of a hash

// Appends canonical JSON: the caller gives the keys of each object in the order of their bytes.
class JsonWriter {
 public:
  JsonWriter& key(std::string_view name) {
    separate();
    out_ += '"';
    out_ += name;
    out_ += "\":";
    fresh_ = true;
    return *this;
  }
  // A key with any characters.
  JsonWriter& text_key(std::string_view name) {
    text(name);
    out_ += ':';
    fresh_ = true;
    return *this;
  }
  void open(char bracket) {
    separate();
    out_ += bracket;
    fresh_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    fresh_ = false;
  }
  void number(int64_t value) {
    separate();
    char digits[20];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    out_.append(digits, end);
  }
  void numbers(std::span<const int64_t> values) {
    open('[');
    for (const int64_t value : values) number(value);
    close(']');
  }
  void text(std::string_view value) {
    separate();
    out_ += '"';
    for (size_t at = 0; at < value.size();) {
      size_t end = at;
      while (end < value.size() && !needs_escape(value[end])) ++end;
      out_ += value.substr(at, end - at);
      if (end < value.size()) escape(value[end++]);
      at = end;
    }
    out_ += '"';
  }
  std::string take() { return std::move(out_); }

 private:
  // A comma, unless this is the first of its list or object, or the value of a key.
  void separate() {
    if (!std::exchange(fresh_, false)) out_ += ',';
  }
  static bool needs_escape(char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; }
  void escape(char c) {
    static constexpr std::string_view kShort = "\b\t\n\f\r\"\\", kLetters = "btnfr\"\\";
    const size_t at = kShort.find(c);
    if (at == kShort.npos) {
      fmt::format_to(std::back_inserter(out_), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out_ += '\\';
      out_ += kLetters[at];
    }
  }

  std::string out_;
  bool fresh_ = true;
};

// Fields of one JSON object. The first that is missing or wrong becomes the error. Later calls then return empty
// values.
class Fields {
 public:
  Fields(const Json& object, std::string& error) : error_(error) {
    if (object.get(object_) != simdjson::SUCCESS) {
      is_object_ = false;
      fail_with("is not an object");
    }
  }

  bool has(const char* key) const { return is_object_ && object_.at_key(key).error() == simdjson::SUCCESS; }

  int64_t integer(const char* key, int64_t low, int64_t high) {
    const auto value = at(key);
    return value ? integer(*value, key, low, high) : low;
  }
  std::string text(const char* key) {
    const auto value = at(key);
    std::string_view text;
    if (!value || value->get(text) == simdjson::SUCCESS) return std::string(text);
    fail_with(fmt::format("\"{}\" is not a string", key));
    return {};
  }
  Hash128 hash(const char* key) {
    const auto value = at(key);
    return value ? hash(*value, key) : Hash128{};
  }
  std::vector<Hash128> hashes(const char* key) {
    std::vector<Hash128> values;
    for (const Json value : array(key)) values.push_back(hash(value, key));
    return values;
  }
  std::vector<int64_t> integers(const char* key) {
    std::vector<int64_t> values;
    for (const Json value : array(key)) values.push_back(integer(value, key, 0, INT64_MAX));
    return values;
  }
  // The members of an object of strings. Empty when it is missing or another kind of value.
  std::vector<std::pair<std::string, std::string>> texts(const char* key) {
    std::vector<std::pair<std::string, std::string>> members;
    const auto value = at(key);
    simdjson::dom::object object;
    if (!value || value->get(object) != simdjson::SUCCESS) {
      fail_with(fmt::format("\"{}\" is not an object", key));
      return members;
    }
    for (const auto& member : object) {
      std::string_view text;
      if (member.value.get(text) != simdjson::SUCCESS) fail_with(fmt::format("\"{}\" has more than strings", key));
      members.emplace_back(member.key, text);
    }
    return members;
  }
  // Empty when it is missing or no list.
  std::vector<Json> array(const char* key) {
    const auto value = at(key);
    simdjson::dom::array array;
    if (value && value->get(array) == simdjson::SUCCESS) return {array.begin(), array.end()};
    fail_with(fmt::format("\"{}\" is not a list", key));
    return {};
  }

  bool ok() const { return error_.empty(); }
  void fail_with(std::string reason) {
    if (error_.empty()) error_ = std::move(reason);
  }

 private:
  std::optional<Json> at(const char* key) {
    Json value;
    if (is_object_ && object_.at_key(key).get(value) == simdjson::SUCCESS) return value;
    fail_with(fmt::format("has no \"{}\"", key));
    return std::nullopt;
  }
  int64_t integer(const Json& value, const char* key, int64_t low, int64_t high) {
    int64_t number = 0;
    if (value.is_int64() && value.get(number) == simdjson::SUCCESS && number >= low && number <= high) return number;
    fail_with(fmt::format("\"{}\" is not a whole number in [{}, {}]", key, low, high));
    return low;
  }
  Hash128 hash(const Json& value, const char* key) {
    std::string_view text;
    const auto hash = value.get(text) == simdjson::SUCCESS ? hash128_from_hex(text) : std::nullopt;
    if (!hash) fail_with(fmt::format("\"{}\" is not a hash of {} hexadecimal digits", key, kHexDigits));
    return hash.value_or(Hash128{});
  }

  simdjson::dom::object object_;
  bool is_object_ = true;
  std::string& error_;
};

}  // namespace millrace::checkpoint
