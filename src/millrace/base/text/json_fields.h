// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads JSON documents that Millrace wrote, in which a missing field or a field of another type is an error. For .cpp
// files only, since it needs simdjson. Values; for one thread.

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

// A parsed JSON object. It does not refer to the parsed text.
class JsonDocument {
 public:
  // Errors: corruption with the reason. The caller adds the name of the text.
  [[nodiscard]] static Result<JsonDocument> parse(std::string_view text);

  // Whether both have equal members, in any order. Different spellings of a number are equal. REQUIRES: no object of
  // this document has a key twice.
  bool operator==(const JsonDocument& other) const;

 private:
  friend class JsonFields;
  JsonDocument() = default;

  std::unique_ptr<simdjson::dom::document> values_;
  simdjson::dom::element root_;
};

// Reads fields of an object. Remembers the first field that is missing or wrong, and returns the least allowed value,
// an empty value or false for it. The document must outlive this object.
class JsonFields {
 public:
  static constexpr int64_t kMostCount = int64_t{1} << 53;  // every JSON reader holds numbers up to this exactly

  explicit JsonFields(const JsonDocument& document);
  JsonFields(const JsonFields&) = delete;
  JsonFields& operator=(const JsonFields&) = delete;

  bool has(std::string_view key) const;
  bool is(std::string_view key, std::string_view text) const;  // whether the member is this text
  std::vector<std::string_view> keys() const;
  std::string json(std::string_view key) const;  // the member as JSON; "null" if it is missing
  size_t size(std::string_view key) const;       // length of a list, at most 2^24 - 1; 0: missing or no list

  int64_t count(std::string_view key);  // 0 to kMostCount, so that sums of a few and conversions never overflow
  int64_t integer(std::string_view key, int64_t low, int64_t high = INT64_MAX);
  uint64_t natural(std::string_view key);
  std::string text(std::string_view key);
  bool boolean(std::string_view key);
  Hash128 hash(std::string_view key);
  std::vector<Hash128> hashes(std::string_view key);
  std::vector<int64_t> integers(std::string_view key);  // each at least 0
  std::vector<double> numbers(std::string_view key);
  // Returns the members of an object of strings.
  std::vector<std::pair<std::string, std::string>> texts(std::string_view key);
  // object() calls `read` with the object, if there is one. each() calls `read` with each object of the list until the
  // first error.
  void object(std::string_view key, const std::function<void(JsonFields&)>& read);
  void each(std::string_view key, const std::function<void(JsonFields&)>& read);

  // Checks a rule of the caller. Its error reads "options.lanes is not `expected`".
  void check(bool good, std::string_view key, std::string_view expected);
  // Reports a broken rule about several fields. The error reads "tensors[0] 'a': `reason`".
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
  std::string_view key_;     // key in the parent
  size_t index_ = kNoIndex;  // index in the list of that key
  std::string own_error_;
  std::string& error_ = own_error_;  // error of the outermost object
};

}  // namespace millrace
