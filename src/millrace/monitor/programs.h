// SPDX-License-Identifier: Apache-2.0
#pragma once

// Adds the numbers that Millrace's own loaders and checkpointers on this node show (base/published.h), as series.
// There are sums over all processes, from the first sample on, and the numbers of each process. Not thread-safe.

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
  // Does the same for processes that were read already.
  void add(std::span<const PublishedProcess> processes, Sample& sample);

 private:
  using Values = std::map<std::string, int64_t, std::less<>>;
  const std::vector<std::string> folders_;
  std::map<std::string, Values> before_;  // by file, in the previous sample
  Values sums_;                           // counters summed over all processes that ever ran
  int64_t time_ns_ = 0;                   // of the previous sample
};

}  // namespace millrace::monitor
