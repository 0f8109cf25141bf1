// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/exact_stats.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace millrace::lerobot {
namespace {

// `value_at(i)`: the i-th smallest of `count`.
template <class ValueAt>
double quantile(double share, int64_t count, const ValueAt& value_at) {
  const double place = share * static_cast<double>(count - 1);
  const auto below = static_cast<int64_t>(place);
  const double low = value_at(below), high = value_at(std::min(below + 1, count - 1));
  const double t = place - static_cast<double>(below);
  return t < 0.5 ? low + (high - low) * t : high - (high - low) * (1 - t);  // as NumPy, from the nearer end
}

template <class ValueAt>
void add_dimension(ExactStats& stats, double mean, double variance, int64_t count, const ValueAt& value_at) {
  const std::array<double, 4> first = {value_at(0), value_at(count - 1), mean, std::sqrt(std::max(variance, 0.0))};
  for (size_t i = 0; i < first.size(); ++i) stats.values[i].push_back(first[i]);
  for (size_t i = 0; i < kStatQuantiles.size(); ++i) {
    stats.values[first.size() + i].push_back(quantile(kStatQuantiles[i], count, value_at));
  }
}

// Of [rows, dim], dimension by dimension at once.
std::vector<double> row_means(std::span<const double> values, size_t dim, size_t rows) {
  std::vector<double> mean(dim);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t d = 0; d < dim; ++d) mean[d] += values[row * dim + d];
  }
  for (double& each : mean) each /= static_cast<double>(rows);
  return mean;
}

// The places of a sorted column that add_dimension looks at, ascending.
std::vector<size_t> wanted_ranks(int64_t count) {
  std::set<int64_t> ranks = {0, count - 1};
  for (const double share : kStatQuantiles) {
    const auto below = static_cast<int64_t>(share * static_cast<double>(count - 1));
    ranks.insert(below);
    ranks.insert(std::min(below + 1, count - 1));
  }
  return {ranks.begin(), ranks.end()};
}

// Puts the values of these ranks where sorting would put them. `values` begins at rank `first`.
void select_ranks(std::span<double> values, size_t first, std::span<const size_t> ranks) {
  if (ranks.empty()) return;
  const size_t middle = ranks.size() / 2, place = ranks[middle] - first;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(place), values.end());
  select_ranks(values.first(place), first, ranks.first(middle));
  select_ranks(values.subspan(place + 1), ranks[middle] + 1, ranks.subspan(middle + 1));
}

}  // namespace

ExactStats number_stats(std::span<const double> values, int64_t width) {
  ExactStats stats;
  const auto dim = static_cast<size_t>(width), rows = values.size() / dim;
  stats.count = static_cast<int64_t>(rows);
  const std::vector<double> mean = row_means(values, dim, rows);
  std::vector<double> squares(dim), column(rows);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t d = 0; d < dim; ++d) {
      const double away = values[row * dim + d] - mean[d];
      squares[d] += away * away;
    }
  }
  const std::vector<size_t> ranks = wanted_ranks(stats.count);
  for (size_t d = 0; d < dim; ++d) {
    for (size_t row = 0; row < rows; ++row) column[row] = values[row * dim + d];
    if (!std::ranges::is_sorted(column)) select_ranks(column, 0, ranks);
    add_dimension(stats, mean[d], squares[d] / static_cast<double>(rows), stats.count,
                  [&](int64_t i) { return column[static_cast<size_t>(i)]; });
  }
  return stats;
}

void PixelHistogram::add(std::span<const uint8_t> rgb) {
  for (size_t i = 0; i < rgb.size(); ++i) ++counts[i % 3][rgb[i]];
  ++frames;
}

void PixelHistogram::add(std::span<const uint8_t> rgb, int64_t width, int64_t stride) {
  const auto row_bytes = static_cast<size_t>(3 * width), step = static_cast<size_t>(stride);
  for (size_t row = 0; row < rgb.size(); row += step * row_bytes) {
    for (size_t at = row; at < row + row_bytes; at += 3 * step) {
      for (size_t c = 0; c < counts.size(); ++c) ++counts[c][rgb[at + c]];
    }
  }
  ++frames;
}

void PixelHistogram::add(const PixelHistogram& other) {
  for (size_t c = 0; c < counts.size(); ++c) {
    for (size_t v = 0; v < counts[c].size(); ++v) counts[c][v] += other.counts[c][v];
  }
  frames += other.frames;
}

ExactStats image_stats(const PixelHistogram& histogram) {
  ExactStats stats;
  stats.count = histogram.frames;
  stats.is_image = true;
  for (const auto& counts : histogram.counts) {
    int64_t pixels = 0, sum = 0, squares = 0;
    for (int64_t v = 0; v < 256; ++v) {
      const int64_t count = counts[static_cast<size_t>(v)];
      pixels += count;
      sum += v * count;
      squares += v * v * count;
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(pixels);
    const double variance = static_cast<double>(squares) / static_cast<double>(pixels) - mean * mean;
    const auto value_at = [&](int64_t place) {
      size_t value = 0;
      for (int64_t seen = counts[0]; seen <= place; seen += counts[++value]) {
      }
      return static_cast<double>(value) / 255;
    };
    add_dimension(stats, mean / 255, variance / (255 * 255), pixels, value_at);
  }
  return stats;
}

namespace {

nlohmann::ordered_json list_of(const ExactStats& stats, size_t name) {
  auto list = nlohmann::ordered_json::array();
  for (const double value : stats.values[name]) {
    const nlohmann::ordered_json number = value;
    list.push_back(stats.is_image ? nlohmann::ordered_json::array({nlohmann::ordered_json::array({number})}) : number);
  }
  return list;
}

}  // namespace

nlohmann::ordered_json stats_json(const ExactStats& stats, size_t names) {
  nlohmann::ordered_json json;
  for (size_t i = 0; i < names; ++i) json[std::string(kStatNames[i])] = list_of(stats, i);
  json["count"] = nlohmann::ordered_json::array({stats.count});
  return json;
}

nlohmann::ordered_json groot_stats_json(const ExactStats& stats) {
  nlohmann::ordered_json json;
  for (const size_t i : {2, 3, 0, 1, 4, 8}) json[std::string(kStatNames[i])] = list_of(stats, i);
  return json;
}

}  // namespace millrace::lerobot
