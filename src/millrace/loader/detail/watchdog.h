// SPDX-License-Identifier: Apache-2.0
#pragma once

// Says when a wait takes too long: by a warning, again each time the wait has doubled, or by an error. A wait goes on
// over calls that end with timeout, as Python's do to look for Ctrl-C. Thread-safe; waits of several threads are one.

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

class Watchdog {
 public:
  // `limit`: 0 means that no wait is too long.
  Watchdog(std::chrono::milliseconds limit, OnStall on_stall) : limit_(limit), on_stall_(on_stall) {}

  // Calls wait(until), which answers timeout when `until` passes, again and again until it answers something else or
  // `deadline` passes. `describe` tells what is waited for. Errors: those of `wait`; unavailable with ETIMEDOUT (the
  // wait took too long, OnStall::kRaise), after which the next call waits as long again.
  template <class Wait>
  [[nodiscard]] auto watch(Clock::time_point deadline, const Wait& wait, const std::function<std::string()>& describe)
      -> decltype(wait(deadline)) {
    for (;;) {
      auto answer = wait(std::min(deadline, next_alarm()));
      if (answer || answer.error().code() != ErrorCode::kTimeout) {
        end();
        return answer;
      }
      if (Status status = alarm_if_due(describe); !status) return tl::unexpected(std::move(status).error());
      if (Clock::now() >= deadline) return answer;
    }
  }

 private:
  struct Wait {
    Clock::time_point begun;
    Clock::time_point alarm;
  };
  Clock::time_point next_alarm();
  void end();
  std::optional<double> overdue_seconds();
  [[nodiscard]] Status alarm_if_due(const std::function<std::string()>& describe);

  const std::chrono::milliseconds limit_;
  const OnStall on_stall_;
  Mutex mutex_;
  std::optional<Wait> wait_ GUARDED_BY(mutex_);
};

}  // namespace millrace::loader
