// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lends tensors to a save while training is paused. Thread-safe.

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

class LiveTensors {
 public:
  // `fill`: fills the places of tensors without data.
  explicit LiveTensors(std::span<const TensorToSave> tensors, FillImage fill = {})
      : tensors_(tensors.begin(), tensors.end()),
        fill_(std::move(fill)),
        are_all_here_(std::ranges::all_of(
            tensors_, [](const TensorToSave& tensor) { return tensor.data != nullptr || is_empty(tensor); })) {}

  // Returns whether the host has the elements of all tensors.
  bool are_all_here() const { return are_all_here_; }
  // Fills places of tensors that the host does not have. REQUIRES: inside read().
  [[nodiscard]] Status fill(std::span<std::byte> memory, std::span<const ImagePlace> places) const {
    return fill_(memory, places, FillMode::kComplete);
  }

  // Runs `use` with the tensors. Any number of threads may call this. After leave() it returns false and does not run
  // `use`.
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
  // Takes the tensors back so that training can continue: waits for the reads under way and refuses later ones.
  void leave() {
    MutexLock lock(mutex_);
    is_left_ = true;
    while (readers_ > 0) changed_.wait(mutex_);
  }

 private:
  static bool is_empty(const TensorToSave& tensor) {
    return std::ranges::find(tensor.box.shape, 0) != tensor.box.shape.end();
  }

  const std::vector<TensorToSave> tensors_;
  const FillImage fill_;
  const bool are_all_here_;
  Mutex mutex_;
  CondVar changed_;
  int readers_ GUARDED_BY(mutex_) = 0;
  bool is_left_ GUARDED_BY(mutex_) = false;
};

}  // namespace millrace::checkpoint
