// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/json_columns.h"

#include <simdjson.h>

#include <utility>
#include <vector>

#include "millrace/base/text/strings.h"

namespace millrace::formats {

namespace {

namespace ondemand = simdjson::ondemand;

constexpr size_t kMostInt64Digits = 18;  // every integer of so many digits fits into int64

uint32_t number_kind(std::string_view token) {
  token = trimmed(token);
  if (token.find_first_of(".eE") != std::string_view::npos) return JsonColumns::kFloat;
  if (token.starts_with('-')) token.remove_prefix(1);
  return token.size() > kMostInt64Digits ? JsonColumns::kInteger | JsonColumns::kLarge : JsonColumns::kInteger;
}

// Returns the kinds of a value; 0: it is not JSON.
uint32_t kind_of(ondemand::value value) {
  ondemand::json_type type{};
  if (value.type().get(type) != simdjson::SUCCESS) return 0;
  switch (type) {
    case ondemand::json_type::number:
      return number_kind(value.raw_json_token());
    case ondemand::json_type::boolean:
      return JsonColumns::kBool;
    case ondemand::json_type::null:
      return JsonColumns::kNull;
    default:
      return JsonColumns::kOther;
  }
}

}  // namespace

bool JsonColumns::add_line(std::string_view line, size_t capacity) {
  thread_local ondemand::parser parser;
  ondemand::document document;
  ondemand::object object;
  const simdjson::padded_string_view padded(line.data(), line.size(), capacity);
  if (parser.iterate(padded).get(document) != simdjson::SUCCESS) return false;
  if (document.get_object().get(object) != simdjson::SUCCESS) return false;
  std::vector<std::pair<std::string, uint32_t>> found;  // a line counts only when it could be read whole
  for (auto each : object) {
    ondemand::field field;
    std::string_view name;
    if (std::move(each).get(field) != simdjson::SUCCESS) return false;
    if (field.unescaped_key().get(name) != simdjson::SUCCESS) return false;
    const uint32_t kinds = kind_of(field.value());
    if (kinds == 0) return false;
    found.emplace_back(name, kinds);
  }
  ++rows_;
  for (const auto& [name, kinds] : found) {
    if (has_too_many_) break;
    const auto known = columns_.find(name);
    Column& column = known != columns_.end() ? known->second : columns_[name];
    column.kinds |= kinds;
    ++column.rows;
    has_too_many_ = columns_.size() > kMostColumns;
  }
  if (has_too_many_) columns_.clear();
  return true;
}

void JsonColumns::add(std::string_view lines, const std::function<void(std::string_view line)>& unread) {
  const simdjson::padded_string padded(lines);  // the parser reads a few bytes past the end of a line
  const std::string_view text(padded.data(), padded.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (!trimmed(line).empty() && !add_line(line, text.size() - begin + simdjson::SIMDJSON_PADDING)) unread(line);
    begin = end + 1;
  }
}

}  // namespace millrace::formats
