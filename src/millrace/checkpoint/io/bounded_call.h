// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs a storage call that may never return on a thread that can be abandoned. For the thread that created the object.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

class BoundedCall {
 public:
  // `call` must own all that it uses. `late` is called when an abandoned call returns after all.
  BoundedCall(std::function<Status()> call, std::function<void()> late)
      : thread_("mr-ckpt-look", [shared = shared_, call = std::move(call), late = std::move(late)] {
          Status answer = call();
          MutexLock lock(shared->mutex);
          shared->answer = std::move(answer);
          if (shared->is_left) late();
          shared->changed.notify_all();
        }) {}

  // Returns the result of the call; nullopt: the call did not return within `timeout` and is abandoned. `left` is then
  // called, always before `late`. Call this once.
  [[nodiscard]] std::optional<Status> wait(std::chrono::milliseconds timeout, const std::function<void()>& left) {
    MutexLock lock(shared_->mutex);
    const auto deadline = Clock::now() + timeout;
    while (!shared_->answer && Clock::now() < deadline)
      static_cast<void>(shared_->changed.wait_until(shared_->mutex, deadline));
    if (shared_->answer) return shared_->answer;
    shared_->is_left = true;
    left();
    thread_.detach();
    return std::nullopt;
  }

 private:
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::optional<Status> answer GUARDED_BY(mutex);
    bool is_left GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Thread thread_;
};

}  // namespace millrace::checkpoint
