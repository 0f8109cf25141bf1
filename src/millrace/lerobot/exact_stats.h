// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes exact statistics of values in memory. Those of numbers cover all values, with quantiles as NumPy's (linear
// between two). Those of pictures cover all pixels that were added, in [0, 1]. Not thread-safe.

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

namespace millrace::lerobot {

inline constexpr std::array<std::string_view, 9> kStatNames = {"min", "max", "mean", "std", "q01",
                                                               "q10", "q50", "q90",  "q99"};
inline constexpr size_t kFirstQuantile = 4;  // its place in kStatNames
inline constexpr std::array<double, 5> kStatQuantiles = {0.01, 0.1, 0.5, 0.9, 0.99};

// The statistics of one feature in one episode or in the dataset. values[i] holds the statistic kStatNames[i] for each
// dimension. A list is empty if the statistic was not computed.
struct ExactStats {
  std::array<std::vector<double>, kStatNames.size()> values;
  int64_t count = 0;      // frames
  bool is_image = false;  // the dimensions are channels, written as [channel][1][1]
};

// Computes statistics of numbers. `values` is [frames, width].
ExactStats number_stats(std::span<const double> values, int64_t width);

// Counts how often each value of a channel occurs.
struct PixelHistogram {
  std::array<std::array<int64_t, 256>, 3> counts{};
  int64_t frames = 0;

  void add(std::span<const uint8_t> rgb);  // [height, width, 3]
  // Adds every `stride`-th pixel of every `stride`-th row, starting with the first.
  void add(std::span<const uint8_t> rgb, int64_t width, int64_t stride);
  void add(const PixelHistogram& other);
};
ExactStats image_stats(const PixelHistogram& histogram);

// Returns {"min": [...], ..., "count": [frames]} with the first `names` of kStatNames.
nlohmann::ordered_json stats_json(const ExactStats& stats, size_t names = kStatNames.size());
// Returns GR00T's statistics: mean, std, min, max, q01 and q99.
nlohmann::ordered_json groot_stats_json(const ExactStats& stats);

}  // namespace millrace::lerobot
