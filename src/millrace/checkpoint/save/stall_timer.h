// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "millrace/base/metrics.h"
#include "millrace/base/published.h"
#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

// Measures how long save() stops training, for the Saver's metrics and for monitors of the process.
class StallTimer {
 public:
  explicit StallTimer(Metrics& metrics) : metrics_(metrics) {}
  ~StallTimer() {
    const Clock::duration stood = Clock::now() - begun_;
    metrics_.add_seconds(Metric::kStallSeconds, stood);
    publish_add(Published::kStallNs, std::chrono::nanoseconds(stood).count());
  }
  StallTimer(const StallTimer&) = delete;
  StallTimer& operator=(const StallTimer&) = delete;

 private:
  Metrics& metrics_;
  const Clock::time_point begun_ = Clock::now();
};

}  // namespace millrace::checkpoint
