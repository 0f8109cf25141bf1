// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Millrace's own loaders and checkpointers on this node show (base/published.h), as series: sums over the
// processes, which are there from the first sample on, and the numbers of each. Not thread-safe.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/published.h"
#include "millrace/monitor/sample.h"

namespace millrace::monitor {

class Programs {
 public:
  // `folders`: where processes show their numbers.
  explicit Programs(std::vector<std::string> folders) : folders_(std::move(folders)) {}
  void read(Sample& sample);
  // The same for processes that were read already.
  void add(std::span<const PublishedProcess> processes, Sample& sample);

 private:
  using Values = std::map<std::string, int64_t, std::less<>>;
  const std::vector<std::string> folders_;
  std::map<std::string, Values> before_;  // by file, in the sample before
  Values sums_;                           // of the counters of all processes that there were
  int64_t time_ns_ = 0;                   // of the sample before
};

}  // namespace millrace::monitor
