// SPDX-License-Identifier: Apache-2.0
#pragma once

// The monitor of one node: writes a sample to each sink every `interval`, until it is stopped. Uses one thread, and
// memory that does not grow.

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/monitor/counters.h"
#include "millrace/monitor/sinks.h"

namespace millrace::monitor {

struct MonitorConfig {
  Roots roots;
  std::string nvml = "libnvidia-ml.so.1";
  std::chrono::duration<double> interval{1};
  int64_t samples = 0;                // 0: until stopped
  std::vector<std::string> programs;  // folders where processes show their numbers (Programs)
};

// Runs the monitor. Calls `missing` once for each part that the node lacks. A stop is the normal end. Errors: those of
// the sinks.
[[nodiscard]] Status run_monitor(const MonitorConfig& config, const std::vector<std::unique_ptr<Sink>>& sinks,
                                 const std::function<void(const std::string&)>& missing, std::stop_token stop);

}  // namespace millrace::monitor
