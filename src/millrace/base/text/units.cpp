// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/text/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/strings.h"

namespace millrace {

Result<int64_t> parse_bytes(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 14> kUnits{{{"", 1},
                                                                               {"B", 1},
                                                                               {"K", 1e3},
                                                                               {"KB", 1e3},
                                                                               {"KIB", 1024.0},
                                                                               {"M", 1e6},
                                                                               {"MB", 1e6},
                                                                               {"MIB", 1048576.0},
                                                                               {"G", 1e9},
                                                                               {"GB", 1e9},
                                                                               {"GIB", 1073741824.0},
                                                                               {"T", 1e12},
                                                                               {"TB", 1e12},
                                                                               {"TIB", 1099511627776.0}}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit = upper_case({end, text.data() + text.size()});
  unit.erase(0, unit.find_first_not_of(' '));
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& u) { return u.first == unit; });
  if (error != std::errc() || found == kUnits.end() || !(value >= 0) || value * found->second > 9e18) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is not a size; write for example 4096, 64MiB or 1.5GB", text);
  }
  return static_cast<int64_t>(std::llround(value * found->second));
}

Result<std::chrono::duration<double>> parse_duration(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 8> kUnits{
      {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}}};
  constexpr double kMost = 1e12;  // seconds
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& u) { return u.first == unit; });
  if (error != std::errc() || found == kUnits.end() || !(value >= 0) || value * found->second > kMost) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is not a duration; write for example 140ms, 90s, 30m, 12h or 3d",
                text);
  }
  return std::chrono::duration<double>(value * found->second);
}

std::optional<int64_t> parse_whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool digits = !text.empty() && is_digit(text[0]);
  if (!digits || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<std::string_view, 6> kNames{"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kNames.size()) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, kNames[unit]);
}

std::string format_rate(double bytes_per_s) {
  return format_bytes(std::llround(bytes_per_s)) + "/s";
}

std::string format_count(int64_t count) {
  std::string text = fmt::format("{}", count);
  const int64_t first = count < 0 ? 1 : 0;
  for (auto i = static_cast<int64_t>(text.size()) - 3; i > first; i -= 3) text.insert(static_cast<size_t>(i), ",");
  return text;
}

std::string format_duration(double seconds) {
  if (seconds < 60) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 1);
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 3600) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
}

}  // namespace millrace
