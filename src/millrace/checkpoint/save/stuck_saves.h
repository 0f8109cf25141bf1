// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counts, for each tier, the saves that were given up there and whose storage still hangs. Thread-safe.

#include <cstddef>
#include <vector>

#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

class StuckSaves {
 public:
  explicit StuckSaves(size_t tiers) : counts_(tiers) {}

  void add(size_t tier) {
    MutexLock lock(mutex_);
    ++counts_[tier];
  }
  // Notes that the storage of `tier` has answered a save that was given up.
  void remove(size_t tier) {
    MutexLock lock(mutex_);
    --counts_[tier];
    changed_.notify_all();
  }
  int count(size_t tier) const {
    MutexLock lock(mutex_);
    return counts_[tier];
  }
  // Waits until no save hangs in `tier`, at most until `deadline`.
  void wait_until_none(size_t tier, Clock::time_point deadline) {
    MutexLock lock(mutex_);
    while (counts_[tier] > 0 && changed_.wait_until(mutex_, deadline)) {
    }
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<int> counts_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
