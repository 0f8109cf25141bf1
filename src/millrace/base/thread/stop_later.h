// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sets a stop token a fixed time after another one, for work that may finish after Ctrl-C, but only within a limit.

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>

#include "millrace/base/thread/sync.h"

namespace millrace {

// Thread-safe. The token may outlive this object; nothing sets it afterwards.
class StopLater {
 public:
  StopLater(const std::stop_token& stop, std::chrono::milliseconds delay) : delay_(delay) {
    if (stop.stop_possible()) with_first_.emplace(stop, [this] { thread_ = Thread("mr-stop", [this] { wait(); }); });
  }
  ~StopLater() {
    with_first_.reset();
    MutexLock lock(mutex_);
    is_ending_ = true;
    ending_.notify_all();
  }
  StopLater(const StopLater&) = delete;
  StopLater& operator=(const StopLater&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  void wait() {
    const Clock::time_point end = Clock::now() + delay_;
    MutexLock lock(mutex_);
    while (!is_ending_ && Clock::now() < end) ending_.wait_until(mutex_, end);
    if (!is_ending_) stop_.request_stop();
  }

  const std::chrono::milliseconds delay_;
  std::stop_source stop_;
  Mutex mutex_;
  CondVar ending_;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  Thread thread_;  // declared after the members that it uses
  std::optional<std::stop_callback<std::function<void()>>> with_first_;
};

}  // namespace millrace
