// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/thread/executor.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "millrace/base/thread/numa.h"
#include "millrace/base/thread/sync.h"

namespace millrace {

struct Executor::Impl {
  Impl(int thread_count, std::string thread_name, std::vector<int> thread_cpus)
      : threads_wanted(thread_count), name(std::move(thread_name)), cpus(std::move(thread_cpus)) {}

  ~Impl() {
    {
      MutexLock lock(mutex);
      stopping = true;
      queue.clear();
    }
    changed.notify_all();
    threads.clear();
  }

  bool add(std::function<void()> task, int priority) REQUIRES_LOCK(mutex) {
    if (stopping) return false;
    queue.emplace(std::pair{-priority, sequence++}, std::move(task));
    return true;
  }

  // Starts a thread when no idle one is left for the last task of the queue.
  void start_if_needed() REQUIRES_LOCK(mutex) {
    if (std::ssize(queue) <= idle || std::ssize(threads) == threads_wanted) return;
    threads.emplace_back(name, [this] { run(); });
    ++idle;
  }

  void run() {
    stay_on(cpus);
    std::function<void()> task;
    for (bool has_run = false;; has_run = true) {
      {
        MutexLock lock(mutex);
        idle += has_run ? 1 : 0;  // start_if_needed() has counted a new thread
        while (queue.empty() && !stopping) changed.wait(mutex);
        if (stopping) return;
        --idle;
        task = std::move(queue.begin()->second);
        queue.erase(queue.begin());
      }
      task();
      task = nullptr;
    }
  }

  const int threads_wanted;
  const std::string name;
  const std::vector<int> cpus;
  Mutex mutex;
  CondVar changed;
  // The highest priority first, then the order of submission.
  std::map<std::pair<int, uint64_t>, std::function<void()>> queue GUARDED_BY(mutex);
  uint64_t sequence GUARDED_BY(mutex) = 0;
  bool stopping GUARDED_BY(mutex) = false;
  int64_t idle GUARDED_BY(mutex) = 0;  // threads that run no task, or have just been started
  std::vector<Thread> threads;         // grows under the mutex until `stopping`
};

Executor::Executor(int threads, std::string name, std::vector<int> cpus)
    : threads_(threads), impl_([threads, name = std::move(name), cpus = std::move(cpus)] {
        return std::make_unique<Impl>(threads, name, cpus);
      }) {}

Executor::~Executor() = default;

void Executor::submit(std::function<void()> task, int priority) {
  Impl& impl = impl_.get();
  {
    MutexLock lock(impl.mutex);
    if (!impl.add(std::move(task), priority)) return;
    impl.start_if_needed();
  }
  impl.changed.notify_one();
}

void Executor::submit_last(std::function<void()> task, int priority) {
  Impl& impl = impl_.get();
  MutexLock lock(impl.mutex);
  impl.add(std::move(task), priority);
}

void parallel_for(Executor& executor, int64_t count, const std::function<void(int64_t)>& body) {
  struct Shared {
    std::atomic<int64_t> next{0};
    int64_t count = 0;
    const std::function<void(int64_t)>* body = nullptr;
    Mutex mutex;
    CondVar done;
    int64_t finished GUARDED_BY(mutex) = 0;
  };
  auto shared = std::make_shared<Shared>();
  shared->count = count;
  shared->body = &body;
  // A helper that starts after all indices are taken touches only `shared`, so `body` need not outlive this call for
  // it.
  const auto work = [](Shared& s) {
    int64_t ran = 0;
    for (int64_t i; (i = s.next.fetch_add(1)) < s.count; ++ran) (*s.body)(i);
    if (ran == 0) return;
    MutexLock lock(s.mutex);
    s.finished += ran;
    if (s.finished == s.count) s.done.notify_all();
  };
  const int64_t helpers = std::min<int64_t>(executor.threads(), count - 1);
  for (int64_t i = 0; i < helpers; ++i) executor.submit([shared, work] { work(*shared); });
  work(*shared);
  MutexLock lock(shared->mutex);
  while (shared->finished < count) shared->done.wait(shared->mutex);
}

Status parallel_try(Executor& executor, int64_t count, const std::function<Status(int64_t)>& body) {
  std::atomic<int64_t> failed{count};  // the lowest known
  Mutex mutex;
  Status first;
  const auto run = [&](int64_t i) {
    if (i > failed) return;
    Status status = body(i);
    if (status) return;
    MutexLock lock(mutex);
    if (i > failed) return;
    failed = i;
    first = std::move(status);
  };
  parallel_for(executor, count, run);
  return first;
}

Status parallel_try(int64_t count, int threads, std::string name, const std::function<Status(int64_t)>& body) {
  if (count <= 0) return {};
  Executor executor(static_cast<int>(std::clamp<int64_t>(count - 1, 1, threads)), std::move(name));
  return parallel_try(executor, count, body);
}

}  // namespace millrace
