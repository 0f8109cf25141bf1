// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one queue of a transfer engine, and the threads that serve it. A job is a copy. It runs in steps: a step may wait
// for a disk or for one request, but never for another step, so few threads carry many jobs. The scheduler bounds how
// many jobs have begun and how many threads there are; the buffer pool bounds their bytes. Thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "millrace/base/thread/sync.h"

namespace millrace::sync {

class CopyScheduler {
 public:
  // kLight: a small copy, whose steps take some ten microseconds. kHeavy: all others.
  enum class Weight { kLight, kHeavy };
  // The event that a job waits for after a step.
  enum class Next {
    kCall,    // resume()
    kTurn,    // those that are ready
    kMemory,  // another step gives memory back. REQUIRES: the job holds none
    kEnd,     // it has ended
  };
  using Step = std::function<Next()>;

  // Light jobs that have begun and not ended: as many requests as S3 is sent at once. With 64 a server on the same
  // machine was idle for a fifth of the time, with 256 it was no faster.
  static constexpr int64_t kMostLight = 128;

  // At most `most_heavy` heavy jobs have begun and not ended.
  explicit CopyScheduler(int most_heavy);
  // Waits until every job has ended.
  ~CopyScheduler();
  CopyScheduler(const CopyScheduler&) = delete;
  CopyScheduler& operator=(const CopyScheduler&) = delete;

  // A new job. `first` runs when there is room; jobs of one weight begin in the order of add().
  void add(Weight weight, Step first);
  // A step of a job that has begun, beside others or after one that answered kCall.
  void resume(Weight weight, Step step);

 private:
  struct Task {
    Weight weight = Weight::kLight;
    Step step;
    uint64_t steps_before = 0;  // that had ended when it was taken
  };
  struct Jobs {
    std::deque<Step> waiting;
    int64_t begun = 0;  // and not ended
    int64_t most = 1;
  };

  Jobs& jobs(Weight weight) REQUIRES_LOCK(mutex_) { return weight == Weight::kHeavy ? heavy_ : light_; }
  bool may_begin(const Jobs& jobs) const REQUIRES_LOCK(mutex_);
  // Steps that are ready, and light jobs that may begin.
  int64_t light_work() const REQUIRES_LOCK(mutex_);
  // Threads that are awake and in no heavy step.
  int64_t serving() const REQUIRES_LOCK(mutex_) { return std::ssize(threads_) - asleep_ - in_heavy_steps_; }
  void call_thread(Weight weight) REQUIRES_LOCK(mutex_);
  bool take(Task& task) REQUIRES_LOCK(mutex_);
  void put_back(Task task, Next next) REQUIRES_LOCK(mutex_);
  void sleep() REQUIRES_LOCK(mutex_);
  void serve();

  const size_t most_threads_;
  Mutex mutex_;
  CondVar wanted_, ended_;
  Jobs light_ GUARDED_BY(mutex_), heavy_ GUARDED_BY(mutex_);
  std::deque<Task> ready_ GUARDED_BY(mutex_);
  std::deque<Task> parked_ GUARDED_BY(mutex_);     // until there is memory
  uint64_t steps_ GUARDED_BY(mutex_) = 0;          // that have ended, and may have given memory back
  int64_t asleep_ GUARDED_BY(mutex_) = 0;          // threads that were not called yet
  int64_t called_ GUARDED_BY(mutex_) = 0;          // threads that are to wake up
  int64_t in_heavy_steps_ GUARDED_BY(mutex_) = 0;  // threads
  bool is_watched_ GUARDED_BY(mutex_) = false;     // a thread that sleeps looks by itself whether there is work
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;  // changed under the mutex; the last member: they end before what they use
};

}  // namespace millrace::sync
