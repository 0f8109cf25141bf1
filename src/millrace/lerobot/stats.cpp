// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace millrace::lerobot {
namespace {

constexpr std::array<std::string_view, 5> kQuantiles = {"q01", "q10", "q50", "q90", "q99"};

Place at_feature(Place place, std::string_view feature) {
  place.data.column = std::string(feature);
  return place;
}

// What the bins of a histogram and float32 may add: an all-zero column has quantiles of 4e-16.
double slack(double low, double high) {
  return 1e-9 + 1e-5 * (std::abs(low) + std::abs(high) + (high - low));
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

// A picture has one number for each channel, as a list of channels x 1 x 1 or flat.
int64_t expected_size(const Feature& feature) {
  if (!feature.is_picture()) return feature.size();
  if (const auto size = feature.picture_size(); size && size->first * size->second > 0) {
    return feature.size() / (size->first * size->second);
  }
  return -1;
}

void check_values(const Feature& feature, const FeatureStats& stats, const Place& place, Report& report) {
  const auto *min = stats.find("min"), *max = stats.find("max"), *std = stats.find("std"), *mean = stats.find("mean");
  const auto complain = [&](size_t i, std::string_view what) {
    report.add(55, at_feature(place, feature.name), fmt::format("of dimension {} {}", i, what));
  };
  for (size_t i = 0; i < min->size(); ++i) {
    const double low = (*min)[i], high = (*max)[i], near = slack(low, high);
    if (low > high) return complain(i, fmt::format("min {} is greater than max {}", low, high));
    if ((*std)[i] < 0) return complain(i, fmt::format("std is {}", (*std)[i]));
    if ((*mean)[i] < low - near || (*mean)[i] > high + near) {
      return complain(i, fmt::format("the mean {} does not lie between {} and {}", (*mean)[i], low, high));
    }
    double before = low - near;
    for (const std::string_view name : kQuantiles) {
      const auto* values = stats.find(name);
      if (values == nullptr || values->size() != min->size()) continue;
      const double value = (*values)[i];
      if (value < before - near || value > high + near) {
        return complain(i, fmt::format("{} is {}, out of order between {} and {}", name, value, low, high));
      }
      before = value;
    }
  }
}

}  // namespace

const std::vector<double>* FeatureStats::find(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? nullptr : &found->second;
}

StatsByFeature parse_stats(const Json& json, const Place& place, Report& report) {
  StatsByFeature all;
  if (!json.is_object()) {
    report.add(55, place, "the statistics are no object");
    return all;
  }
  for (const auto& [feature, entry] : json.items()) {
    if (feature == "__fingerprints__") continue;
    FeatureStats& stats = all[feature];
    if (!entry.is_object()) {
      report.add(55, at_feature(place, feature), "its statistics are no object");
      continue;
    }
    for (const auto& [name, value] : entry.items()) {
      std::vector<int64_t> shape;
      const auto numbers = numbers_of(value, shape);
      if (!numbers) {
        report.add(55, at_feature(place, feature), fmt::format("its {} is no list of numbers", name));
        continue;
      }
      std::vector<double>& out = stats.values[name];
      for (const auto& number : *numbers) out.push_back(number.value_or(std::numeric_limits<double>::quiet_NaN()));
      stats.shapes[name] = std::move(shape);
    }
  }
  return all;
}

void check_feature_stats(const Feature& feature, const FeatureStats& stats, const Place& place, Report& report) {
  const int64_t size = expected_size(feature);
  for (const char* name : {"min", "max", "mean", "std"}) {
    const auto* values = stats.find(name);
    if (values == nullptr) return report.add(55, at_feature(place, feature.name), fmt::format("it has no {}", name));
    if (size >= 0 && static_cast<int64_t>(values->size()) != size) {
      return report.add(55, at_feature(place, feature.name),
                        fmt::format("its {} has {} numbers, the feature {}", name, values->size(), size));
    }
  }
  for (const auto& [name, values] : stats.values) {
    if (all_finite(values)) continue;
    return report.add(55, at_feature(place, feature.name), fmt::format("its {} has NaN or an infinity in it", name));
  }
  if (const auto* count = stats.find("count"); count != nullptr && count->size() != 1) {
    report.add(55, at_feature(place, feature.name), fmt::format("its count has {} numbers and not one", count->size()));
  }
  const size_t length = stats.find("min")->size();
  for (const char* name : {"max", "mean", "std"}) {
    if (stats.find(name)->size() != length) return;  // of a picture whose channels are not known
  }
  check_values(feature, stats, place, report);
}

}  // namespace millrace::lerobot
