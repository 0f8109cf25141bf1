// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs long calls that Ctrl-C ends cleanly.

#include <functional>
#include <optional>
#include <utility>

#include "millrace/python/errors.h"
#include "millrace/storage/url.h"

namespace millrace::python {

// Runs `call(stop_token)` on a new thread while this thread checks for Ctrl-C. A signal stops the work cleanly before
// it is raised. Meanwhile, this thread calls `watch` repeatedly, and once at the end. An exception of `watch` stops
// the work, too. REQUIRES: the GIL.
template <class T>
T interruptible(const std::function<Result<T>(std::stop_token)>& call, const std::function<void()>& watch = {}) {
  std::stop_source stop;
  std::optional<Result<T>> result;
  Mutex mutex;
  CondVar changed;
  bool done = false;
  Thread worker("mr-call", [&] {
    const StopScope scope(stop.get_token());
    auto answer = call(stop.get_token());
    MutexLock lock(mutex);
    result.emplace(std::move(answer));
    done = true;
    changed.notify_all();
  });
  try {
    for (;;) {
      bool finished = false;
      {
        const GilRelease release;
        MutexLock lock(mutex);
        if (!done) changed.wait_until(mutex, Clock::now() + kSignalPoll);
        finished = done;
      }
      if (watch) watch();
      if (finished) break;
      check_signals();
    }
  } catch (...) {
    const GilRelease release;
    stop.request_stop();
    worker.join();
    throw;
  }
  return unwrap(std::move(*result));
}

}  // namespace millrace::python
