// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads JSON documents of our own, in which a field that is missing or of another type is an error. For .cpp files
// only, since it needs simdjson. Values; for one thread.

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"

namespace millrace {

// A parsed JSON object. It does not refer to the text that it was parsed from.
class JsonDocument {
 public:
  // Errors: corruption with the reason; the caller adds which text it is.
  [[nodiscard]] static Result<JsonDocument> parse(std::string_view text);

  // Whether both have equal members, in any order. A number is equal in each of its forms.
  // REQUIRES: no key occurs twice in an object of this one.
  bool operator==(const JsonDocument& other) const;

 private:
  friend class JsonFields;
  JsonDocument() = default;

  std::unique_ptr<simdjson::dom::document> values_;
  simdjson::dom::element root_;
};

// Takes fields out of an object. Remembers the first that is missing or wrong, and returns the least value that is
// allowed, an empty one or false for it. The document must outlive it.
class JsonFields {
 public:
  static constexpr int64_t kMostCount = int64_t{1} << 53;  // what every JSON reader holds exactly

  explicit JsonFields(const JsonDocument& document);
  JsonFields(const JsonFields&) = delete;
  JsonFields& operator=(const JsonFields&) = delete;

  bool has(std::string_view key) const;
  bool is(std::string_view key, std::string_view text) const;  // there, and this text
  std::vector<std::string_view> keys() const;
  std::string json(std::string_view key) const;  // the member as JSON; "null" where it is missing
  size_t size(std::string_view key) const;       // of a list, up to 2^24 - 1; 0 where it is missing or no list

  int64_t count(std::string_view key);  // from 0 to kMostCount, so that neither sums of a few nor conversions overflow
  int64_t integer(std::string_view key, int64_t low, int64_t high = INT64_MAX);
  uint64_t natural(std::string_view key);
  std::string text(std::string_view key);
  bool boolean(std::string_view key);
  Hash128 hash(std::string_view key);
  std::vector<Hash128> hashes(std::string_view key);
  std::vector<int64_t> integers(std::string_view key);  // from 0
  std::vector<double> numbers(std::string_view key);
  // The members of an object of strings.
  std::vector<std::pair<std::string, std::string>> texts(std::string_view key);
  // Calls `read` with the object, if there is one, or with each object of the list until the first error.
  void object(std::string_view key, const std::function<void(JsonFields&)>& read);
  void each(std::string_view key, const std::function<void(JsonFields&)>& read);

  // A rule of the caller: "options.lanes is not `expected`".
  void check(bool good, std::string_view key, std::string_view expected);
  // A rule that more than one field breaks: "tensors[0] 'a': `reason`".
  void fail_with(std::string_view reason);
  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }

 private:
  using Value = simdjson::dom::element;
  static constexpr size_t kNoIndex = SIZE_MAX;

  JsonFields(const Value& value, const JsonFields& parent, std::string& error, std::string_view key, size_t index);

  std::optional<Value> find(std::string_view key) const;
  std::optional<Value> require(std::string_view key);
  template <class T>
  std::optional<T> at(std::string_view key);
  template <class Take>
  void values(std::string_view key, std::string_view expected, Take&& take);
  std::string field(std::string_view key) const;

  std::optional<simdjson::dom::object> object_;  // nullopt: the value is no object
  const JsonFields* parent_ = nullptr;
  std::string_view key_;     // in the parent
  size_t index_ = kNoIndex;  // in the list of that key
  std::string own_error_;
  std::string& error_ = own_error_;  // the outermost object's
};

}  // namespace millrace
