// SPDX-License-Identifier: Apache-2.0
#include "millrace/lint/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <iterator>

#include "millrace/base/text/units.h"

namespace millrace {

void FindingReport::add(std::string_view rule_id, FindingPlace place, std::string message, std::string fix,
                        std::optional<Severity> severity) {
  const Rule* const rule = find_rule(all_rules_, rule_id);
  assert(rule != nullptr);  // ids stand in the code only
  add(*rule, std::move(place), std::move(message), std::move(fix), severity);
}

void FindingReport::add(const Rule& rule, FindingPlace place, std::string message, std::string fix,
                        std::optional<Severity> severity) {
  Finding finding{.rule = &rule,
                  .file = place.file.empty() ? file_ : std::move(place.file),
                  .line = place.line,
                  .column = place.column,
                  .message = std::move(message),
                  .fix = std::move(fix),
                  .severity_here = severity,
                  .data = std::move(place.data)};
  MutexLock lock(mutex_);
  if (finding.severity() == Severity::kError) ++errors_;
  OfRule& of_rule = rules_[static_cast<size_t>(&rule - all_rules_.data())];
  if (limits_.kept == 0 || std::ssize(of_rule.findings) < limits_.kept) {
    of_rule.findings.push_back(std::move(finding));
  } else {
    ++of_rule.dropped;
  }
}

int64_t FindingReport::errors_so_far() const {
  MutexLock lock(mutex_);
  return errors_;
}

void FindingReport::limit(OfRule& of_rule) const {
  std::vector<Finding>& findings = of_rule.findings;
  int64_t more = of_rule.dropped;
  if (limits_.shown > 0 && std::ssize(findings) > limits_.shown) {
    more += std::ssize(findings) - limits_.shown;
    findings.resize(static_cast<size_t>(limits_.shown));
  }
  if (more == 0) return;
  Finding rest = findings.back();
  rest.file = ".";
  rest.line = rest.column = 0;
  rest.data = {};
  rest.fix.clear();
  rest.message = fmt::format("{} more findings of this rule are not shown ({})", format_count(more), limits_.way_out);
  findings.push_back(std::move(rest));
}

std::vector<Finding> FindingReport::take() {
  MutexLock lock(mutex_);
  std::vector<Finding> all;
  for (OfRule& of_rule : rules_) {
    sort_findings(of_rule.findings);
    limit(of_rule);
    std::ranges::move(of_rule.findings, std::back_inserter(all));
    of_rule = {};
  }
  sort_findings(all);
  return all;
}

}  // namespace millrace
