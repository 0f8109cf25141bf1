// SPDX-License-Identifier: Apache-2.0
#pragma once

// Progress of long work: counters that the work adds to and a watcher reads. The library does not display them; the CLI
// does. Thread-safe.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/thread/sync.h"

namespace millrace {

class Progress {
 public:
  Progress() = default;
  // Counts the progress of one file of `whole`. Each amount added here is also added to `whole`, which may be null;
  // else it must outlive this object.
  Progress(Progress* whole, std::string name, int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Totals are 0 while unknown. Items are documents, files or tensors, as `set_phase` says.
  void set_totals(int64_t bytes, int64_t items) {
    total_bytes_ = bytes;
    total_items_ = items;
  }
  void add(int64_t bytes, int64_t items) {
    bytes_ += bytes;
    items_ += items;
    if (whole_ != nullptr) whole_->add(bytes, items);
  }
  // Counts an item that failed; the work continues.
  void add_failed() { ++failed_; }
  void set_phase(std::string phase);

  struct Part {
    std::string name;
    int64_t bytes = 0, total_bytes = 0;
  };
  struct Snapshot {
    int64_t bytes = 0, total_bytes = 0, items = 0, total_items = 0, failed = 0;
    double seconds = 0;  // since construction
    std::string phase;
    std::vector<Part> parts;  // unfinished parts, the oldest first
  };
  Snapshot snapshot() const;

 private:
  std::atomic<int64_t> bytes_{0}, total_bytes_{0}, items_{0}, total_items_{0}, failed_{0};
  const Clock::time_point start_ = Clock::now();
  Progress* const whole_ = nullptr;
  const std::string name_;
  mutable Mutex mutex_;
  std::string phase_ GUARDED_BY(mutex_);
  std::vector<const Progress*> parts_ GUARDED_BY(mutex_);
};

}  // namespace millrace
