// SPDX-License-Identifier: Apache-2.0
#pragma once

// The levels of a batch plan, and the largest batch that fits. Pure functions.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace millrace::plan {

struct LevelName {
  std::string_view name;
  double utilisation;
};
inline constexpr std::array<LevelName, 3> kLevels{
    {{"conservative", 0.75}, {"recommended", 0.85}, {"aggressive", 0.95}}};

// Returns the largest batch with fixed + per_sample x batch <= room; 0 if not even one sample fits.
inline int64_t largest_batch(double room_gib, double fixed_gib, double per_sample_gib) {
  // 1.2 x 10 must fit into 12, although 1.2 is not exact in binary.
  const double count = std::floor((room_gib - fixed_gib) / per_sample_gib + 1e-9);
  return static_cast<int64_t>(std::clamp(count, 0.0, 1e12));
}

}  // namespace millrace::plan
