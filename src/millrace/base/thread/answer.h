// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns a call that answers by a callback into a blocking call. Thread-safe.

#include <optional>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace {

// Calls start(done), waits for done(answer) and returns the answer. Any thread must call `done`, exactly once.
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
