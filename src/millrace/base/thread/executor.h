// SPDX-License-Identifier: Apache-2.0
#pragma once

// Worker threads that run tasks by priority, then in the order of submission. Thread-safe. A task starts a thread when
// no thread is idle and fewer than `threads` run. Threads live until the destructor. The destructor drops tasks that
// have not started and waits for running ones. An owner that needs every task to run waits for completion first.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/per_process.h"

namespace millrace {

class Executor {
 public:
  // Runs at most `threads` threads. `top -H` shows them as `name`. Unless `cpus` is empty, they run only on these CPUs
  // (base/thread/numa.h). REQUIRES: threads >= 1.
  Executor(int threads, std::string name, std::vector<int> cpus = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues a task, which must not throw. A higher `priority` runs earlier. A forked child starts its own threads and
  // does not run the tasks that the parent had queued.
  void submit(std::function<void()> task, int priority = 0);
  // Queues a task from the end of a running task of this executor. The running task must do nothing afterwards. Its
  // thread takes the next task, so no other thread is woken.
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

// Like parallel_for, for bodies that can fail. Returns the error of the lowest i that failed. After a failure, skips
// higher i.
[[nodiscard]] Status parallel_try(Executor& executor, int64_t count, const std::function<Status(int64_t)>& body);
// Like the function above, on its own threads: at most `threads`, named `name`, and none for a count of 1.
[[nodiscard]] Status parallel_try(int64_t count, int threads, std::string name,
                                  const std::function<Status(int64_t)>& body);

}  // namespace millrace
