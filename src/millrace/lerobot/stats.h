// SPDX-License-Identifier: Apache-2.0
#pragma once

// Statistics as LeRobot and GR00T keep them: a list of numbers for each feature and statistic. Pure functions;
// thread-safe.

#include <algorithm>
#include <cmath>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

// {"feature": {"mean": [...], ...}}. What is no list of numbers goes to `report` as LR055, and is left out.
StatsByFeature parse_stats(const Json& json, const Place& place, Report& report);

// LR055 of one feature, with its place: the four statistics are there, have the feature's shape, are numbers and in
// order.
void check_feature_stats(const Feature& feature, const FeatureStats& stats, const Place& place, Report& report);

// By how much a stored number may differ from that of the rows: the ends of a histogram's bins and float32 sums.
inline double stat_slack(double min, double max) {
  return 1e-6 + 1e-3 * (max - min) + 1e-5 * std::max(std::abs(min), std::abs(max));
}
// The same of a standard deviation.
inline double deviation_slack(double min, double max, double deviation) {
  return stat_slack(min, max) + 0.02 * deviation;
}

}  // namespace millrace::lerobot
