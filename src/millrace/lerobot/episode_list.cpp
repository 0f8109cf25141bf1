// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/episode_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace millrace::lerobot {
namespace {

// False: it is no whole number, or one that no dataset has.
bool parse_number(std::string_view text, int64_t& number) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0 && number < kMost;
}

bool parse_range(std::string_view text, EpisodeRange& range) {
  const size_t dash = text.find('-');
  if (!parse_number(text.substr(0, dash), range.first)) return false;
  range.last = range.first;
  return dash == text.npos || (parse_number(text.substr(dash + 1), range.last) && range.last >= range.first);
}

}  // namespace

Result<std::vector<EpisodeRange>> parse_episode_list(std::string_view text) {
  std::vector<EpisodeRange> ranges;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!parse_range(part, ranges.emplace_back())) {
      return fail(ErrorCode::kInvalidArgument, "'{}' is no episode and no range of episodes (0-9,12)", part);
    }
    begin = end + 1;
  }
  return ranges;
}

Result<std::vector<size_t>> episodes_in(const std::vector<EpisodeRange>& ranges, size_t count) {
  std::vector<size_t> episodes;
  for (const EpisodeRange& range : ranges) {
    if (range.last >= static_cast<int64_t>(count)) {
      return fail(ErrorCode::kInvalidArgument, "there is no episode {}: the dataset has 0 to {}", range.last,
                  static_cast<int64_t>(count) - 1);
    }
    for (int64_t i = range.first; i <= range.last; ++i) episodes.push_back(static_cast<size_t>(i));
  }
  std::ranges::sort(episodes);
  const auto twice = std::ranges::adjacent_find(episodes);
  if (twice == episodes.end()) return episodes;
  return fail(ErrorCode::kInvalidArgument, "episode {} is named twice", *twice);
}

bool is_part_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == name.npos;
}

Result<NamedText> parse_named(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  if (equals != text.npos && is_part_name(name)) return NamedText(name, text.substr(equals + 1));
  return fail(ErrorCode::kInvalidArgument, "'{}' is not NAME=VALUE with the name of a folder", text);
}

Result<std::vector<size_t>> ends_of_fractions(const std::vector<double>& fractions, size_t count) {
  constexpr double kSlack = 1e-9;  // of sums such as 0.7 + 0.2 + 0.1
  std::vector<size_t> ends;
  double sum = 0;
  for (const double fraction : fractions) {
    sum += fraction;
    if (!(fraction > 0) || !(sum <= 1 + kSlack)) {
      return fail(ErrorCode::kInvalidArgument, "fractions are above 0, and their sum is at most 1");
    }
    const double end = std::min(std::round(sum * static_cast<double>(count)), static_cast<double>(count));
    if (static_cast<size_t>(end) == (ends.empty() ? 0 : ends.back())) {
      return fail(ErrorCode::kInvalidArgument, "a fraction of {} of {} episodes is none", fraction, count);
    }
    ends.push_back(static_cast<size_t>(end));
  }
  return ends;
}

}  // namespace millrace::lerobot
