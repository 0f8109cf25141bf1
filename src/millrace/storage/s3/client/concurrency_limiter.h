// SPDX-License-Identifier: Apache-2.0
#pragma once

// Limits the number of requests under way to a server. The window shrinks when the server says "slow down" and grows
// with each answer (additive increase, multiplicative decrease, as TCP's congestion avoidance, RFC 5681, 3.1). The
// user's limits on requests and bytes per second apply too. Thread-safe.

#include <cstdint>
#include <deque>
#include <functional>

#include "millrace/base/thread/sync.h"

namespace millrace::s3 {

struct RequestLimits {
  int max_under_way = 128;
  double requests_per_second = 0;  // 0: no limit
  double bytes_per_second = 0;     // rate of bodies, sent and received together; 0: no limit
};

class ConcurrencyLimiter {
 public:
  explicit ConcurrencyLimiter(const RequestLimits& limits) : limits_(limits), window_(limits.max_under_way) {}

  // Runs `go` now or, when the window is full, from a later leave(). `go` gets the earliest moment at which the limits
  // let it start.
  using Go = std::function<void(Clock::time_point not_before)>;
  void enter(int64_t bytes, Go go);
  // Call when a request has ended.
  void leave();
  // Call when the server says "slow down". The request keeps its slot until its retry. A simulation passes `now` from
  // its own clock.
  void slow_down(Clock::time_point now = Clock::now());

  double window() const;
  // The number of requests that have entered and not left yet.
  int under_way() const;

 private:
  struct Waiting {
    int64_t bytes;
    Go go;
  };
  Clock::time_point reserve(int64_t bytes) REQUIRES_LOCK(mutex_);

  const RequestLimits limits_;
  mutable Mutex mutex_;
  double window_ GUARDED_BY(mutex_);
  int under_way_ GUARDED_BY(mutex_) = 0;
  Clock::time_point shrunk_ GUARDED_BY(mutex_){};
  Clock::time_point next_request_ GUARDED_BY(mutex_){}, next_byte_ GUARDED_BY(mutex_){};
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
};

}  // namespace millrace::s3
