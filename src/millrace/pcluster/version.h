// SPDX-License-Identifier: Apache-2.0
#pragma once

// Versions of ParallelCluster. Values.

#include <compare>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace::pcluster {

struct Version {
  int major = 3;
  int minor = 12;
  int patch = 0;
  auto operator<=>(const Version&) const = default;
};

// Facts were taken from the source of this version; a newer one is checked against them and reported as unconfirmed.
inline constexpr Version kKnownVersion{3, 12, 0};

// "3.12" or "3.11.1". Errors: invalid_argument, also for versions outside 3.0 to 3.99.
[[nodiscard]] Result<Version> parse_version(std::string_view text);
std::string to_string(const Version& version);  // "3.12", "3.11.1"

}  // namespace millrace::pcluster
