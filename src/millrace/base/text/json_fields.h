// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fields of JSON objects. The functions read what others wrote: a member of another type counts as missing. JsonFields
// reads our own documents, where it is an error. Thread-safe; a JsonFields is for one thread.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"

namespace millrace {

// The member, or null where `object` is no object or has none. These take nlohmann::json and ordered_json.
template <class Json>
const Json* member(const Json& object, std::string_view key);
// What a member is, if it has that type.
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

// Takes fields out of an object, which must outlive it. Remembers the first that is missing or wrong; what stands in
// its place then is 0, empty or false.
class JsonFields {
 public:
  static constexpr int64_t kMostCount = int64_t{1} << 53;  // what every JSON reader holds exactly

  // `path` stands before each name in an error: "config.".
  explicit JsonFields(const nlohmann::json& object, std::string path = {});

  bool has(std::string_view key) const;
  const nlohmann::json& at(std::string_view key) const;  // null where it is missing
  int64_t count(std::string_view key);  // from 0 to kMostCount, so that neither sums of a few nor conversions overflow
  int64_t integer(std::string_view key, int64_t lowest);
  uint64_t natural(std::string_view key);
  std::string text(std::string_view key);
  bool boolean(std::string_view key);
  Hash128 hash(std::string_view key);
  std::vector<double> numbers(std::string_view key);
  // Calls `read` with the object, or with each object of the list.
  void object(std::string_view key, const std::function<void(JsonFields&)>& read);
  void each(std::string_view key, const std::function<void(JsonFields&)>& read);

  // A rule of the caller: "lanes is not `expected`".
  void check(bool good, std::string_view key, std::string_view expected);
  const std::string& error() const { return error_; }  // empty: all fields were right

 private:
  void read_at(const nlohmann::json& value, std::string path, const std::function<void(JsonFields&)>& read);

  const nlohmann::json& object_;
  std::string path_;
  std::string error_;
};

}  // namespace millrace
