// SPDX-License-Identifier: Apache-2.0
#pragma once

// Locks on bytes of a file, between threads and between processes. The system drops the locks of a process that dies.
// A forked child does not inherit them (fcntl(2), F_SETLK); children would inherit locks of open file descriptions and
// of flock. The process must not close another descriptor of the file while it holds locks. Thread-safe.

#include <cstdint>
#include <set>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/base/thread/sync.h"

namespace millrace::cache {

class ByteLocks {
 public:
  // `fd` is open for writing and outlives this object.
  explicit ByteLocks(int fd) : fd_(fd), state_([] { return std::make_unique<State>(); }) {}

  // Locks [begin, end); returns false when another thread or process holds a byte of the range. Never waits. Errors:
  // resource_exhausted (the system has no more locks).
  [[nodiscard]] Result<bool> try_lock(int64_t begin, int64_t end);
  // Unlocks [begin, end). REQUIRES: the range is locked, by one call or several.
  void unlock(int64_t begin, int64_t end);

 private:
  struct State {
    Mutex mutex;
    std::set<std::pair<int64_t, int64_t>> held GUARDED_BY(mutex);  // disjoint ranges: begin, end
  };
  const int fd_;
  PerProcess<State> state_;
};

// Holds [begin, end) of some locks until it is destroyed.
class ByteLock {
 public:
  ByteLock() = default;
  ByteLock(ByteLocks& locks, int64_t begin, int64_t end) : locks_(&locks), begin_(begin), end_(end) {}
  ByteLock(ByteLock&& other) noexcept { *this = std::move(other); }
  ByteLock& operator=(ByteLock&& other) noexcept {
    std::swap(locks_, other.locks_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    return *this;
  }
  ~ByteLock() {
    if (locks_ != nullptr) locks_->unlock(begin_, end_);
  }
  explicit operator bool() const { return locks_ != nullptr; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  // Locks the next byte, too. Returns false when another thread or process holds it.
  [[nodiscard]] bool try_extend() {
    const Result<bool> taken = locks_->try_lock(end_, end_ + 1);
    if (!taken || !*taken) return false;
    ++end_;
    return true;
  }

 private:
  ByteLocks* locks_ = nullptr;
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

}  // namespace millrace::cache
