// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/python_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "millrace/base/text/strings.h"

namespace millrace::lerobot {
namespace {

// Lists nested deeper than any statistic or shape.
constexpr size_t kMostNesting = 8;
// nlohmann's parser takes any depth; what walks over the values does not.
constexpr int kMostDepth = 64;

// The text with null in place of NaN and the infinities that stand outside of strings.
std::string with_nulls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\' && at + 1 < text.size()) out += text[at++];
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else {
      const auto starts = [&](std::string_view word) { return text.substr(at).starts_with(word); };
      size_t length = starts("NaN") ? 3 : starts("Infinity") ? 8 : starts("-Infinity") ? 9 : 0;
      if (length > 0) {
        out += "null";
        at += length;
        continue;
      }
    }
    out += text[at++];
  }
  return out;
}

int depth_of(std::string_view text) {
  int depth = 0, most = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string && c == '\\') ++at;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') most = std::max(most, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return most;
}

bool add_numbers(const Json& value, size_t level, std::vector<int64_t>& shape,
                 std::vector<std::optional<double>>& numbers) {
  if (!value.is_array()) {
    if (level != shape.size()) return false;
    if (value.is_null()) {
      numbers.emplace_back();
    } else if (value.is_boolean()) {
      numbers.emplace_back(value.get<bool>() ? 1 : 0);
    } else if (value.is_number()) {
      numbers.emplace_back(value.get<double>());
    } else {
      return false;
    }
    return true;
  }
  if (level >= kMostNesting) return false;
  const auto size = static_cast<int64_t>(value.size());
  if (level == shape.size()) {
    if (!numbers.empty()) return false;  // a list where there was a number before
    shape.push_back(size);
  }
  if (shape[level] != size) return false;
  return std::all_of(value.begin(), value.end(),
                     [&](const Json& item) { return add_numbers(item, level + 1, shape, numbers); });
}

}  // namespace

Result<Json> parse_python_json(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (depth_of(text) > kMostDepth) return fail(ErrorCode::kCorruption, "lists and objects are nested too deeply");
  try {
    return Json::parse(with_nulls(text));
  } catch (const Json::exception& thrown) {
    std::string_view what = thrown.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t at = what.find("] "); at != what.npos) what.remove_prefix(at + 2);
    return fail(ErrorCode::kCorruption, "it is no JSON: {}", what);
  }
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(number);
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (std::floor(number) != number || std::abs(number) > 9e15) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::optional<int64_t> integer_at(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  return found == nullptr ? std::nullopt : as_integer(*found);
}

std::optional<std::vector<std::optional<double>>> numbers_of(const Json& value, std::vector<int64_t>& shape) {
  shape.clear();
  std::vector<std::optional<double>> numbers;
  if (!add_numbers(value, 0, shape, numbers)) return std::nullopt;
  return numbers;
}

void for_each_line(std::string_view text, const std::function<void(int64_t, std::string_view)>& visit) {
  int64_t number = 1;
  while (!text.empty()) visit(number++, take_line(text));
}

}  // namespace millrace::lerobot
