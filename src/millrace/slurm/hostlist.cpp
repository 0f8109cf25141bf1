// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "millrace/base/text/units.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

namespace {

constexpr size_t kMaxNames = 100'000;

// The parts of `text` between commas outside of brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      if (i > begin) parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[' || text[i] == ']') {
      inside = text[i] == '[';
    }
  }
  return parts;
}

// "7" or "07-11": as many digits as the first has.
Result<std::vector<std::string>> expand_range(std::string_view range) {
  const size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  const auto from = parse_whole(first), to = parse_whole(last);
  if (!from || !to || *to < *from)
    return fail(ErrorCode::kInvalidArgument, "'{}' is not a range of a host list", range);
  if (static_cast<size_t>(*to - *from) >= kMaxNames) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is more than {} hosts", range, kMaxNames);
  }
  std::vector<std::string> numbers;
  for (int64_t i = *from; i <= *to; ++i) numbers.push_back(fmt::format("{:0{}}", i, first.size()));
  return numbers;
}

Status expand_part(std::string_view part, const std::string& prefix, std::vector<std::string>& names) {
  const size_t open = part.find('[');
  if (open == std::string_view::npos) {
    if (names.size() >= kMaxNames) return fail(ErrorCode::kInvalidArgument, "more than {} hosts", kMaxNames);
    names.push_back(prefix + std::string(part));
    return {};
  }
  const size_t close = part.find(']', open);
  if (close == std::string_view::npos) return fail(ErrorCode::kInvalidArgument, "'{}': a bracket is open", part);
  const std::string before = prefix + std::string(part.substr(0, open));
  for (const std::string_view range : split_outside_brackets(part.substr(open + 1, close - open - 1))) {
    ASSIGN_OR_RETURN(const std::vector<std::string> numbers, expand_range(range));
    for (const std::string& number : numbers) {
      RETURN_IF_ERROR(expand_part(part.substr(close + 1), before + number, names));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view part : split_outside_brackets(text)) RETURN_IF_ERROR(expand_part(part, "", names));
  return names;
}

}  // namespace millrace::slurm
