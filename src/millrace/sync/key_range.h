// SPDX-License-Identifier: Apache-2.0
#pragma once

// The part of a tree that one of several tasks works on: the paths in (after, until], in byte order. Another task may
// take the end of the range while the range is in use. Thread-safe.

#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace::sync {

class KeyRange {
 public:
  // An empty `until` means to the end.
  KeyRange(std::string after, std::string until) : after_(std::move(after)), until_(std::move(until)), done_(after_) {}

  const std::string& after() const { return after_; }
  std::string until() const {
    const MutexLock lock(mutex_);
    return until_;
  }
  bool is_behind(std::string_view path) const {
    const MutexLock lock(mutex_);
    return !until_.empty() && path > until_;
  }
  void shrink(std::string until) {
    const MutexLock lock(mutex_);
    until_ = std::move(until);
  }

  // Sets the last path that was begun. Another task may take the paths after it.
  void begin(std::string_view path) {
    const MutexLock lock(mutex_);
    if (path > begun_) begun_ = path;
  }
  std::string begun() const {
    const MutexLock lock(mutex_);
    return begun_.empty() ? after_ : begun_;
  }
  // Sets the last path up to which all paths are done. Another task would continue after it.
  void finish(std::string_view path) {
    const MutexLock lock(mutex_);
    if (path > done_) done_ = path;
  }
  std::string done() const {
    const MutexLock lock(mutex_);
    return done_;
  }

 private:
  const std::string after_;
  mutable Mutex mutex_;
  std::string until_ GUARDED_BY(mutex_);
  std::string begun_ GUARDED_BY(mutex_);
  std::string done_ GUARDED_BY(mutex_);
};

}  // namespace millrace::sync
