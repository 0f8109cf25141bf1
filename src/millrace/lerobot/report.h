// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the checks put what they find. Thread-safe.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/lint/findings.h"

namespace millrace::lerobot {

// LR001 to LR077, by id.
inline constexpr int kRules = 77;
std::span<const Rule> dataset_rules();

// The rows of the table before and from LR063 on.
std::span<const Rule> general_rules();
std::span<const Rule> groot_rules();

struct Place {
  std::string file;  // below the dataset's root
  int64_t line = 0, column = 0;
  DataPlace data = {};
};

class Report {
 public:
  // take() leaves out what a rule finds beyond `most_per_rule`, and says how much that is. 0: all.
  explicit Report(int64_t most_per_rule) : most_per_rule_(most_per_rule) {}

  // `rule`: 1 to kRules. `severity` and `fix`: where they are not the rule's.
  void add(int rule, Place place, std::string message, std::optional<Severity> severity = {}, std::string fix = {});

  // In order of places.
  std::vector<Finding> take();
  int64_t errors_so_far() const;

 private:
  struct OfRule {
    std::vector<Finding> findings;
    int64_t dropped = 0;
  };
  const int64_t most_per_rule_;
  mutable Mutex mutex_;
  std::array<OfRule, kRules + 1> rules_ GUARDED_BY(mutex_);
  int64_t errors_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::lerobot
