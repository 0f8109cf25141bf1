// SPDX-License-Identifier: Apache-2.0
#pragma once

// What long work says of itself while it runs: counters that the work adds to and a watcher reads. The library draws
// nothing; the CLI does. Thread-safe.

#include <atomic>
#include <cstdint>
#include <string>

#include "millrace/base/sync.h"

namespace millrace {

class Progress {
 public:
  // Totals are 0 while unknown. Items are documents, files or tensors, as `set_phase` says.
  void set_totals(int64_t bytes, int64_t items) {
    total_bytes_ = bytes;
    total_items_ = items;
  }
  void add(int64_t bytes, int64_t items) {
    bytes_ += bytes;
    items_ += items;
  }
  void set_phase(std::string phase);

  struct Snapshot {
    int64_t bytes = 0, total_bytes = 0, items = 0, total_items = 0;
    double seconds = 0;  // since construction
    std::string phase;
  };
  Snapshot snapshot() const;

 private:
  std::atomic<int64_t> bytes_{0}, total_bytes_{0}, items_{0}, total_items_{0};
  const Clock::time_point start_ = Clock::now();
  mutable Mutex mutex_;
  std::string phase_ GUARDED_BY(mutex_);
};

}  // namespace millrace
