// SPDX-License-Identifier: Apache-2.0
#pragma once

// Versions of ParallelCluster. Values.

#include <compare>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace::pcluster {

// A version. The default is the newest known one.
struct Version {
  int major = 3;
  int minor = 16;
  int patch = 3;
  auto operator<=>(const Version&) const = default;
};

// A newer version is checked against the facts of this one, and the findings are marked as unconfirmed.
inline constexpr Version kKnownVersion{3, 16, 3};
// Later than every version.
inline constexpr Version kNoVersion{4, 0, 0};

// Parses "3.12" or "3.11.1". Errors: invalid_argument, also for versions outside 3.0 to 3.99.
[[nodiscard]] Result<Version> parse_version(std::string_view text);
// Parses a version from the tables of this room. REQUIRES: it is valid.
Version known_version(std::string_view text);
std::string to_string(const Version& version);  // "3.12", "3.11.1"

}  // namespace millrace::pcluster
