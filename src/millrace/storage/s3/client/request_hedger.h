// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decides when to repeat a GET that takes far longer than its like. Now and then one request of thousands lands on a
// slow server, and a batch waits for the slowest (Dean and Barroso, "The Tail at Scale", CACM 2013). Thread-safe.

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/base/sync.h"

namespace millrace::s3 {

class RequestHedger {
 public:
  RequestHedger() = default;
  ~RequestHedger();

  // Records that a GET of `bytes` succeeded after `took`.
  void ended(int64_t bytes, Clock::duration took);
  // How long to wait before a repeat; nullopt when too few GETs of this size class are known. It is the larger of the
  // 95th percentile and three times the median: on a slow link all GETs are slow, and a second request would only add
  // to it.
  std::optional<Clock::duration> patience(int64_t bytes) const;

  // Calls `look` once, `after` from now or a few milliseconds later, on the hedger's thread; not when the hedger is
  // destroyed before. `look` must return quickly.
  void watch(Clock::duration after, std::function<void()> look);

  // Asks for a second request of `bytes`: false when too many were sent lately (one of twenty GETs) or their memory is
  // used up (8 MiB together). Give the bytes back at its end.
  bool take(int64_t bytes);
  void give_back(int64_t bytes);

 private:
  static constexpr size_t kClasses = 40;  // size classes, by powers of two: up to a TiB
  static constexpr size_t kKept = 128;    // times of each class: enough for a 95th percentile
  struct Times {
    Mutex mutex;
    std::array<float, kKept> seconds GUARDED_BY(mutex){};
    size_t count GUARDED_BY(mutex) = 0;
    std::atomic<int64_t> patience_ns{0};  // 0: unknown
  };
  void run();

  std::array<Times, kClasses> times_;
  std::atomic<int64_t> ended_{0}, sent_{0}, memory_{0};

  Mutex mutex_;
  CondVar changed_;
  std::multimap<Clock::time_point, std::function<void()>> watched_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  Thread thread_ GUARDED_BY(mutex_);
};

}  // namespace millrace::s3
