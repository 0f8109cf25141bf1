// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/report.h"

#include <utility>
#include <vector>

namespace millrace::lerobot {
namespace {

// A set of a million broken episodes need not stay in memory to be called broken.
constexpr int64_t kMostKept = 10'000;

}  // namespace

std::span<const Rule> dataset_rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> rules(general_rules().begin(), general_rules().end());
    rules.insert(rules.end(), groot_rules().begin(), groot_rules().end());
    return rules;
  }();
  return all;
}

Report::Report(int64_t most_per_rule)
    : FindingReport(dataset_rules(), {},
                    {.kept = kMostKept, .shown = most_per_rule, .way_out = "--max-findings 0 shows up to 10,000"}) {}

void Report::add(int rule, Place place, std::string message, std::string fix, std::optional<Severity> severity) {
  FindingReport::add(dataset_rules()[static_cast<size_t>(rule) - 1], std::move(place), std::move(message),
                     std::move(fix), severity);
}

}  // namespace millrace::lerobot
