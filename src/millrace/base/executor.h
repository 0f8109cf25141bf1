// SPDX-License-Identifier: Apache-2.0
#pragma once

// A fixed set of worker threads that run tasks in the order of their priority, then of their submission. Thread-safe.
// It starts no thread before the first task. The destructor drops what has not started and waits for what has; owners
// that need every task to run wait for their own completions first.

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/per_process.h"

namespace millrace {

class Executor {
 public:
  // `threads` >= 1; `name` is what `top -H` shows.
  Executor(int threads, std::string name);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Tasks must not throw. A higher `priority` runs earlier. In a child after fork the workers are started anew; tasks
  // that the parent had queued stay with the parent.
  void submit(std::function<void()> task, int priority = 0);

  int threads() const { return threads_; }

 private:
  struct Impl;
  const int threads_;
  PerProcess<Impl> impl_;
};

// Runs body(i) for i in [0, count) on `executor` and the calling thread; returns when all have ended.
// REQUIRES: not called from a task of the same executor.
void parallel_for(Executor& executor, int64_t count, const std::function<void(int64_t)>& body);

}  // namespace millrace
