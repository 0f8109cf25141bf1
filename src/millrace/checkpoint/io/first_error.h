// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps the first error of work that many threads share. Thread-safe.

#include <atomic>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

class FirstError {
 public:
  void set(Error error) {
    MutexLock lock(mutex_);
    if (status_) status_ = tl::unexpected<Error>(std::move(error));
    failed_ = true;
  }
  bool failed() const { return failed_; }
  [[nodiscard]] Status status() const {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  Status status_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
