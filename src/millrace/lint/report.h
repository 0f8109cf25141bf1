// SPDX-License-Identifier: Apache-2.0
#pragma once

// Collects the findings of checks, for all linters and validators.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/lint/findings.h"

namespace millrace {

struct FindingPlace {
  std::string file = {};         // empty: the report's file
  int64_t line = 0, column = 0;  // as in Finding
  DataPlace data = {};
};

// Limits for the findings of one rule; 0: no limit.
struct FindingLimits {
  int64_t kept = 0;          // kept in memory, in the order of add()
  int64_t shown = 0;         // shown of the kept ones, in the order of places
  std::string_view way_out;  // tells the reader how to see more: "--max-findings 0 shows up to 10,000"
};

// Thread-safe.
class FindingReport {
 public:
  // Findings that name no file belong to `file`. REQUIRES: `rules` outlive the findings.
  explicit FindingReport(std::span<const Rule> rules, std::string file = {}, FindingLimits limits = {})
      : all_rules_(rules), file_(std::move(file)), limits_(limits), rules_(rules.size()) {}

  // Adds a finding. `fix` and `severity` replace those of the rule. REQUIRES: the rule is one of the report's.
  void add(const Rule& rule, FindingPlace place, std::string message, std::string fix = {},
           std::optional<Severity> severity = {});
  void add(std::string_view rule_id, FindingPlace place, std::string message, std::string fix = {},
           std::optional<Severity> severity = {});
  // Adds a finding at a parser's place, which has a line and a column of the report's file.
  template <class TextPlace>
    requires requires(const TextPlace& at) { at.line + at.column; }
  void add(std::string_view rule_id, const TextPlace& at, std::string message, std::string fix = {},
           std::optional<Severity> severity = {}) {
    add(rule_id, FindingPlace{.line = at.line, .column = at.column}, std::move(message), std::move(fix), severity);
  }

  // Returns the findings in the order of places. If a limit left some out, adds one more finding to their rule with
  // the number.
  std::vector<Finding> take();
  int64_t errors_so_far() const;

 private:
  struct OfRule {
    std::vector<Finding> findings;
    int64_t dropped = 0;
  };
  void limit(OfRule& of_rule) const;

  const std::span<const Rule> all_rules_;
  const std::string file_;
  const FindingLimits limits_;
  mutable Mutex mutex_;
  std::vector<OfRule> rules_ GUARDED_BY(mutex_);  // in the order of all_rules_
  int64_t errors_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace
