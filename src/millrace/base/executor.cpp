// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/executor.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "millrace/base/sync.h"

namespace millrace {

struct Executor::Impl {
  Impl(int thread_count, std::string thread_name) : threads_wanted(thread_count), name(std::move(thread_name)) {}

  ~Impl() {
    {
      MutexLock lock(mutex);
      stopping = true;
      queue.clear();
    }
    changed.notify_all();
    threads.clear();
  }

  void start() REQUIRES_LOCK(mutex) {
    for (int i = 0; i < threads_wanted; ++i) {
      threads.emplace_back(name, [this] { run(); });
    }
  }

  void run() {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mutex);
        while (queue.empty() && !stopping) changed.wait(mutex);
        if (stopping) return;
        task = std::move(queue.begin()->second);
        queue.erase(queue.begin());
      }
      task();
    }
  }

  const int threads_wanted;
  const std::string name;
  Mutex mutex;
  CondVar changed;
  // The highest priority first, then the order of submission.
  std::map<std::pair<int, uint64_t>, std::function<void()>> queue GUARDED_BY(mutex);
  uint64_t sequence GUARDED_BY(mutex) = 0;
  bool stopping GUARDED_BY(mutex) = false;
  std::vector<Thread> threads;
};

Executor::Executor(int threads, std::string name)
    : threads_(threads), impl_([threads, name = std::move(name)] { return std::make_unique<Impl>(threads, name); }) {}

Executor::~Executor() = default;

void Executor::submit(std::function<void()> task, int priority) {
  Impl& impl = impl_.get();
  {
    MutexLock lock(impl.mutex);
    if (impl.stopping) return;
    if (impl.threads.empty()) impl.start();
    impl.queue.emplace(std::pair{-priority, impl.sequence++}, std::move(task));
  }
  impl.changed.notify_one();
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

}  // namespace millrace
