// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the checks put what they find. Thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "millrace/lint/report.h"

namespace millrace::lerobot {

// LR001 to LR077, by id.
inline constexpr int kRules = 77;
std::span<const Rule> dataset_rules();

// The rows of the table before and from LR063 on.
std::span<const Rule> general_rules();
std::span<const Rule> groot_rules();

using Place = FindingPlace;  // `file`: below the dataset's root

class Report : public FindingReport {
 public:
  // take() leaves out what a rule finds beyond `most_per_rule`, and says how much that is. 0: all.
  explicit Report(int64_t most_per_rule);

  // `rule`: 1 to kRules.
  void add(int rule, Place place, std::string message, std::string fix = {}, std::optional<Severity> severity = {});
};

}  // namespace millrace::lerobot
