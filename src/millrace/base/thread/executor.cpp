// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/thread/executor.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "millrace/base/thread/numa.h"
#include "millrace/base/thread/sync.h"

namespace millrace {

struct Executor::Impl {
  struct Worker {
    CondVar called;
    bool is_called = false;  // under the mutex
    Thread thread;
  };

  Impl(int thread_count, std::string thread_name, std::vector<int> thread_cpus)
      : threads_wanted(thread_count), name(std::move(thread_name)), cpus(std::move(thread_cpus)) {}

  ~Impl() {
    {
      MutexLock lock(mutex);
      stopping = true;
      queue.clear();
    }
    for (Worker& worker : workers) worker.called.notify_one();
    workers.clear();
  }

  bool add(std::function<void()> task, int priority) REQUIRES_LOCK(mutex) {
    if (stopping) return false;
    queue.emplace(std::pair{-priority, sequence++}, std::move(task));
    return true;
  }

  // The idle thread to wake for a new task: the one that worked last, whose data is still in its processor's cache.
  // Without an idle one it starts a thread, if it may, and returns nullptr.
  Worker* call_worker() REQUIRES_LOCK(mutex) {
    if (!idle.empty()) {
      Worker* const worker = idle.back();
      idle.pop_back();
      worker->is_called = true;
      return worker;
    }
    if (std::ssize(workers) < threads_wanted) {
      Worker& worker = workers.emplace_back();
      worker.thread = Thread(name, [this, &worker] { run(worker); });
    }
    return nullptr;
  }

  void run(Worker& self) {
    stay_on(cpus);
    std::function<void()> task;
    for (;;) {
      {
        MutexLock lock(mutex);
        while (queue.empty() && !stopping) {
          idle.push_back(&self);
          while (!self.is_called && !stopping) self.called.wait(mutex);
          self.is_called = false;
        }
        if (stopping) return;
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
  // The highest priority first, then the order of submission.
  std::map<std::pair<int, uint64_t>, std::function<void()>> queue GUARDED_BY(mutex);
  uint64_t sequence GUARDED_BY(mutex) = 0;
  bool stopping GUARDED_BY(mutex) = false;
  std::vector<Worker*> idle GUARDED_BY(mutex);  // the last one worked last
  std::deque<Worker> workers;                   // grows under the mutex until `stopping`
};

Executor::Executor(int threads, std::string name, std::vector<int> cpus)
    : threads_(threads), impl_([threads, name = std::move(name), cpus = std::move(cpus)] {
        return std::make_unique<Impl>(threads, name, cpus);
      }) {}

Executor::~Executor() = default;

void Executor::submit(std::function<void()> task, int priority) {
  Impl& impl = impl_.get();
  Impl::Worker* called = nullptr;
  {
    MutexLock lock(impl.mutex);
    if (!impl.add(std::move(task), priority)) return;
    called = impl.call_worker();
  }
  if (called != nullptr) called->called.notify_one();
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
