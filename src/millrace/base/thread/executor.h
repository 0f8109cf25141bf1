// SPDX-License-Identifier: Apache-2.0
#pragma once

// Worker threads that run tasks by priority, then in the order of submission. Thread-safe.
// A task starts a thread when no thread is idle and fewer than `threads` run. Threads stay until the destructor, which
// drops tasks that have not started and waits for the others; owners that need every task to run wait for completion
// first.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/per_process.h"

namespace millrace {

class Executor {
 public:
  // At most `threads` >= 1; `name` is what `top -H` shows; they stay on `cpus`, where there are some
  // (base/thread/numa.h).
  Executor(int threads, std::string name, std::vector<int> cpus = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Tasks must not throw. A higher `priority` runs earlier. A child after fork starts its own threads and does not
  // run the tasks that the parent had queued.
  void submit(std::function<void()> task, int priority = 0);
  // For a task of this executor, as the last thing it does: its thread runs what is submitted next, so no thread is
  // woken for it.
  void submit_last(std::function<void()> task, int priority = 0);

  int threads() const { return threads_; }

 private:
  struct Impl;
  const int threads_;
  PerProcess<Impl> impl_;
};

// Runs body(i) for i in [0, count) on `executor` and the calling thread; returns when all have ended.
// REQUIRES: not called from a task of the same executor.
void parallel_for(Executor& executor, int64_t count, const std::function<void(int64_t)>& body);

// The same with bodies that can fail: returns the error of the lowest i that failed, and skips higher ones once it
// knows of a failure.
[[nodiscard]] Status parallel_try(Executor& executor, int64_t count, const std::function<Status(int64_t)>& body);
// On threads of its own: at most `threads`, named `name`, and none for a count of 1.
[[nodiscard]] Status parallel_try(int64_t count, int threads, std::string name,
                                  const std::function<Status(int64_t)>& body);

}  // namespace millrace
