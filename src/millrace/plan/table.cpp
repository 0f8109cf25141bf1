// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/detail/table.h"

#include <cassert>
#include <charconv>

#include "millrace/base/text/strings.h"

namespace millrace::plan::data {

namespace {

template <class T>
T parsed(std::string_view text) {
  T value{};
  [[maybe_unused]] const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  assert(result.ec == std::errc() && result.ptr == text.data() + text.size());
  return value;
}

// The first field of `line`, which loses it and the comma behind it.
std::string_view take_field(std::string_view& line) {
  const bool quoted = line.starts_with('"');
  if (quoted) line.remove_prefix(1);
  const size_t end = line.find(quoted ? '"' : ',');
  const std::string_view field = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + (quoted ? 1 : 0));
  if (line.starts_with(',')) line.remove_prefix(1);
  return field;
}

Row fields_of(std::string_view line, size_t count) {
  Row row;
  while (row.size() < count) row.push_back(take_field(line));
  assert(line.empty());
  return row;
}

}  // namespace

std::vector<Row> rows_of(std::string_view csv, std::string_view columns) {
  std::vector<Row> rows;
  size_t count = 0;
  while (!csv.empty()) {
    const std::string_view line = take_line(csv);
    if (line.empty() || line.starts_with('#')) continue;
    if (count > 0) {
      rows.push_back(fields_of(line, count));
      continue;
    }
    assert(line == columns);
    for (std::string_view rest = columns; !rest.empty(); ++count) take_field(rest);
  }
  return rows;
}

double number(std::string_view text) {
  return parsed<double>(text);
}

int64_t whole(std::string_view text) {
  return parsed<int64_t>(text);
}

}  // namespace millrace::plan::data
