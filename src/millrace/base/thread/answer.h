// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes a blocking call of one that answers by a callback. Thread-safe.

#include <optional>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace {

// Calls start(done) and waits until done(answer) was called, once, on any thread.
template <class T, class Start>
[[nodiscard]] T wait_for_answer(Start&& start) {
  Mutex mutex;
  CondVar answered;
  std::optional<T> answer;
  start([&](T given) {
    MutexLock lock(mutex);
    answer.emplace(std::move(given));
    answered.notify_one();  // under the lock: the waiting thread destroys it
  });
  MutexLock lock(mutex);
  while (!answer) answered.wait(mutex);
  return *std::move(answer);
}

}  // namespace millrace
