// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs a long task once, on a separate thread. The first wait() starts the task; each caller waits until its deadline.
// After an error the next wait() runs the task again. Thread-safe.

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::loader {

class Opening {
 public:
  // `open` runs on the thread "mr-open". All that it uses must outlive this object.
  explicit Opening(std::function<Status()> open) : open_(std::move(open)) {}
  ~Opening() { stop(); }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  // Waits until the task has ended. Errors: timeout (`deadline` passed; the thread goes on), cancelled (stopped),
  // those of `open`. The next call returns an error that occurred while no call was waiting.
  [[nodiscard]] Status wait(Clock::time_point deadline);
  // Ends all waits, then waits for the thread. REQUIRES: `open` was told to end.
  void stop();

 private:
  void begin() REQUIRES_LOCK(mutex_);
  void run();

  const std::function<Status()> open_;
  Mutex mutex_;
  CondVar changed_;
  bool is_done_ GUARDED_BY(mutex_) = false;
  bool is_running_ GUARDED_BY(mutex_) = false;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
  uint64_t ended_ GUARDED_BY(mutex_) = 0;          // number of attempts that have ended
  std::optional<Error> error_ GUARDED_BY(mutex_);  // error of the last attempt
  bool is_error_answered_ GUARDED_BY(mutex_) = true;
  Thread thread_ GUARDED_BY(mutex_);
};

}  // namespace millrace::loader
