// SPDX-License-Identifier: Apache-2.0
#pragma once

// Versions of ParallelCluster. Values.

#include <compare>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace::pcluster {

// By default the newest that is known.
struct Version {
  int major = 3;
  int minor = 16;
  int patch = 3;
  auto operator<=>(const Version&) const = default;
};

// A newer version is checked against the facts of this one and reported as unconfirmed.
inline constexpr Version kKnownVersion{3, 16, 3};
// Behind every version.
inline constexpr Version kNoVersion{4, 0, 0};

// "3.12" or "3.11.1". Errors: invalid_argument, also for versions outside 3.0 to 3.99.
[[nodiscard]] Result<Version> parse_version(std::string_view text);
// REQUIRES: a version, as the tables of this room have it.
Version known_version(std::string_view text);
std::string to_string(const Version& version);  // "3.12", "3.11.1"

}  // namespace millrace::pcluster
