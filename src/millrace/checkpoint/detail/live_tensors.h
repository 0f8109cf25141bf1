// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tensors of a training that stands still while a save reads them. Thread-safe.

#include <span>
#include <utility>
#include <vector>

#include "millrace/base/sync.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

class LiveTensors {
 public:
  explicit LiveTensors(std::span<const TensorToSave> tensors) : tensors_(tensors.begin(), tensors.end()) {}

  // Runs `use` with the tensors, on any number of threads. False, and not run, after leave().
  template <class Use>
  [[nodiscard]] bool read(Use&& use) {
    {
      MutexLock lock(mutex_);
      if (is_left_) return false;
      ++readers_;
    }
    std::forward<Use>(use)(std::span<const TensorToSave>(tensors_));
    MutexLock lock(mutex_);
    if (--readers_ == 0) changed_.notify_all();
    return true;
  }
  // The training goes on: waits for the reads under way, and refuses later ones.
  void leave() {
    MutexLock lock(mutex_);
    is_left_ = true;
    while (readers_ > 0) changed_.wait(mutex_);
  }

 private:
  const std::vector<TensorToSave> tensors_;
  Mutex mutex_;
  CondVar changed_;
  int readers_ GUARDED_BY(mutex_) = 0;
  bool is_left_ GUARDED_BY(mutex_) = false;
};

}  // namespace millrace::checkpoint
