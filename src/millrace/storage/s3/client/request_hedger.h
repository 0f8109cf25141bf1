// SPDX-License-Identifier: Apache-2.0
#pragma once

// When a GET is worth asking a second time, because it takes far longer than its like: now and then a request of
// thousands lands on a slow server, and a batch waits for the slowest (Dean and Barroso, "The Tail at Scale", CACM
// 2013). Thread-safe.

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

  // A GET of so many bytes ended well after `took`.
  void ended(int64_t bytes, Clock::duration took);
  // How long one is waited for; nothing where too few of its like are known. Beyond what 95 of 100 took and three times
  // what half of them took: where all share one slow link, a second request would only add to it.
  std::optional<Clock::duration> patience(int64_t bytes) const;

  // Calls `look` once, `after` from now or a few milliseconds later, on a thread of its own; never, when this is
  // dropped before. It must be brief.
  void watch(Clock::duration after, std::function<void()> look);

  // For a second request of so many bytes: false when too many were sent lately (one of twenty GETs) or their memory
  // is used up (8 MiB together). What was taken is given back at its end.
  bool take(int64_t bytes);
  void give_back(int64_t bytes);

 private:
  static constexpr size_t kClasses = 40;  // of sizes, by powers of two
  static constexpr size_t kKept = 128;    // times of each
  struct Times {
    Mutex mutex;
    std::array<float, kKept> seconds GUARDED_BY(mutex){};
    size_t count GUARDED_BY(mutex) = 0;
    std::atomic<int64_t> patience_ns{0};  // 0: not known
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
