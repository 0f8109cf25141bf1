// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses and checks statistics as LeRobot and GR00T store them: a list of numbers for each feature and statistic. Pure
// functions; thread-safe.

#include <algorithm>
#include <cmath>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

// Parses {"feature": {"mean": [...], ...}}. Values that are no list of numbers are reported as LR055 and left out.
StatsByFeature parse_stats(const Json& json, const Place& place, Report& report);

// Checks LR055 for one feature: the four statistics are there, have the feature's shape, are numbers and are in order.
// `place` is the place of its findings.
void check_feature_stats(const Feature& feature, const FeatureStats& stats, const Place& place, Report& report);

// Returns by how much a stored statistic may differ from that of the rows, because of histogram bins and float32 sums.
inline double stat_slack(double min, double max) {
  return 1e-6 + 1e-3 * (max - min) + 1e-5 * std::max(std::abs(min), std::abs(max));
}
// Returns the slack for a standard deviation.
inline double deviation_slack(double min, double max, double deviation) {
  return stat_slack(min, max) + 0.02 * deviation;
}

}  // namespace millrace::lerobot
