// SPDX-License-Identifier: Apache-2.0
#pragma once

// Collects the findings of the checks. Thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "millrace/lint/report.h"

namespace millrace::lerobot {

// The rules LR001 to LR077, by id.
inline constexpr int kRules = 77;
std::span<const Rule> dataset_rules();

// The rules before LR063, and those from LR063 on.
std::span<const Rule> general_rules();
std::span<const Rule> groot_rules();

using Place = FindingPlace;  // `file`: below the dataset's root

class Report : public FindingReport {
 public:
  // take() returns at most `most_per_rule` findings of a rule and states how many it left out. 0: returns all.
  explicit Report(int64_t most_per_rule);

  // Adds a finding. `rule`: 1 to kRules.
  void add(int rule, Place place, std::string message, std::string fix = {}, std::optional<Severity> severity = {});
};

}  // namespace millrace::lerobot
