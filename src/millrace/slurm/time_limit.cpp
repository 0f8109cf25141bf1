// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/time_limit.h"

#include <array>
#include <string>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"

namespace millrace::slurm {

bool is_unlimited(std::string_view text) {
  return equal_ignoring_case(text, "unlimited") || equal_ignoring_case(text, "infinite");
}

std::optional<int64_t> parse_time_limit(std::string_view text) {
  std::array<int64_t, 4> parts{};
  size_t count = 0;
  int64_t days = -1;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto whole = parse_whole(text.substr(0, dash));
    if (!whole) return std::nullopt;
    days = *whole;
    text.remove_prefix(dash + 1);
  }
  for (bool more = true; more;) {
    const size_t colon = text.find(':');
    const auto whole = parse_whole(text.substr(0, colon));
    if (!whole || count == 3 || *whole > 1'000'000'000 || days > 1'000'000) return std::nullopt;
    parts[count++] = *whole;
    more = colon != std::string_view::npos;
    if (more) text.remove_prefix(colon + 1);
  }
  if (days >= 0) return ((days * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2];
  if (count == 1) return parts[0] * 60;
  if (count == 2) return parts[0] * 60 + parts[1];
  return (parts[0] * 60 + parts[1]) * 60 + parts[2];
}

}  // namespace millrace::slurm
