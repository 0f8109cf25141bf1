// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/report.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "millrace/base/text/units.h"

namespace millrace::lerobot {
namespace {

// A set of a million broken episodes need not stay in memory to be called broken.
constexpr size_t kMostKept = 10'000;

}  // namespace

std::span<const Rule> dataset_rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> rules(general_rules().begin(), general_rules().end());
    rules.insert(rules.end(), groot_rules().begin(), groot_rules().end());
    return rules;
  }();
  return all;
}

void Report::add(int rule, Place place, std::string message, std::optional<Severity> severity, std::string fix) {
  const Rule& row = dataset_rules()[static_cast<size_t>(rule) - 1];
  Finding finding{.rule = &row,
                  .file = std::move(place.file),
                  .line = place.line,
                  .column = place.column,
                  .message = std::move(message),
                  .fix = std::move(fix),
                  .severity_here = severity,
                  .data = std::move(place.data)};
  MutexLock lock(mutex_);
  if (finding.severity() == Severity::kError) ++errors_;
  OfRule& of_rule = rules_[static_cast<size_t>(rule)];
  if (of_rule.findings.size() < kMostKept) {
    of_rule.findings.push_back(std::move(finding));
  } else {
    ++of_rule.dropped;
  }
}

int64_t Report::errors_so_far() const {
  MutexLock lock(mutex_);
  return errors_;
}

std::vector<Finding> Report::take() {
  MutexLock lock(mutex_);
  std::vector<Finding> all;
  for (OfRule& of_rule : rules_) {
    std::vector<Finding>& findings = of_rule.findings;
    sort_findings(findings);
    const auto kept = static_cast<size_t>(most_per_rule_);
    int64_t more = of_rule.dropped;
    if (most_per_rule_ > 0 && findings.size() > kept) {
      more += static_cast<int64_t>(findings.size() - kept);
      findings.resize(kept);
    }
    if (more > 0) {
      Finding rest = findings.back();
      rest.file = ".";
      rest.line = rest.column = 0;
      rest.data = {};
      rest.fix.clear();
      rest.message = fmt::format("{} more findings of this rule are not shown (--max-findings 0 shows up to {})",
                                 format_count(more), format_count(kMostKept));
      findings.push_back(std::move(rest));
    }
    std::move(findings.begin(), findings.end(), std::back_inserter(all));
    of_rule = {};
  }
  sort_findings(all);
  return all;
}

}  // namespace millrace::lerobot
