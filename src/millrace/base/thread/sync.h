// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mutexes, threads, clocks and stop tokens of the whole project come from here, with clang's thread-safety annotations.
// Everything here is thread-safe unless it says otherwise.

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#if defined(__clang__)
#define MILLRACE_ANNOTATE(x) __attribute__((x))
#else
#define MILLRACE_ANNOTATE(x)
#endif
#define GUARDED_BY(mutex) MILLRACE_ANNOTATE(guarded_by(mutex))
#define REQUIRES_LOCK(mutex) MILLRACE_ANNOTATE(requires_capability(mutex))

namespace millrace {

using Clock = std::chrono::steady_clock;

class MILLRACE_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() MILLRACE_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() MILLRACE_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class MILLRACE_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MILLRACE_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() MILLRACE_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex that the caller holds. Predicates are loops at the call: `while (!ready_) changed_.wait(mutex_);`
class CondVar {
 public:
  void wait(Mutex& mutex) MILLRACE_ANNOTATE(requires_capability(mutex)) {
    // Does the same as std::condition_variable::wait. That function is part of the libstdc++ library since GCC 12,
    // which RHEL 9 and Amazon Linux 2023 do not have. All other functions used here are inline or older.
    pthread_cond_wait(condition_.native_handle(), mutex.mutex_.native_handle());
  }
  // Returns false when `deadline` passed first.
  bool wait_until(Mutex& mutex, Clock::time_point deadline) MILLRACE_ANNOTATE(requires_capability(mutex)) {
    Held lock(mutex);
    return condition_.wait_until(lock.held, deadline) == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  // Passes the caller's lock to std::condition_variable, so that no second mutex is needed.
  struct Held {
    explicit Held(Mutex& mutex) : held(mutex.mutex_, std::adopt_lock) {}
    ~Held() { held.release(); }
    std::unique_lock<std::mutex> held;
  };
  std::condition_variable condition_;
};

// A thread that is joined on destruction. It blocks every signal, so that signals reach the program's own threads.
class Thread {
 public:
  Thread() = default;
  // `top -H` shows `name`, at most 15 characters.
  Thread(const std::string& name, std::function<void()> body);
  ~Thread();
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&&) noexcept;
  bool joinable() const { return thread_.joinable(); }
  void join() { thread_.join(); }
  // For a thread that may never end; it must own everything that it uses.
  void detach() { thread_.detach(); }

 private:
  std::thread thread_;
};

// Waits until `end` or until `stop` is set. Returns false when `stop` was set.
bool sleep_until(Clock::time_point end, const std::stop_token& stop);

// Returns the number of forks between the first process and this one: 0 in the first process, one more in each child.
// An object that owns threads remembers the value. If the value differs later, its threads are not in this process.
uint64_t fork_generation();

// Returns the number of CPUs this process may use: its affinity mask, limited by a cgroup CPU quota; at least 1.
int available_cpus();

// Returns the name of this node from gethostname; empty when that fails.
std::string host_name();

// Returns the number of processes of this job on this node, which share its CPUs and memory: LOCAL_WORLD_SIZE
// (torchrun) or SLURM_NTASKS_PER_NODE; at least 1.
int local_ranks();

}  // namespace millrace
