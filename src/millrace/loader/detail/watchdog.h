// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reports a wait that takes too long: by a warning, again each time the wait has doubled, or by an error. Calls that
// end with timeout count as one wait together, because Python calls with short deadlines to look for Ctrl-C.
// Thread-safe; waits of several threads count as one wait.

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
  // `limit`: a longer wait is reported; 0: never.
  Watchdog(std::chrono::milliseconds limit, OnStall on_stall) : limit_(limit), on_stall_(on_stall) {}

  // Calls wait(until) repeatedly until it returns something other than timeout, or `deadline` passes. `wait` must
  // return timeout when `until` passes. `describe` describes the current stage of the wait. Errors: those of `wait`;
  // unavailable with ETIMEDOUT (the wait took too long, OnStall::kRaise), after which the next call waits as long
  // again.
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
