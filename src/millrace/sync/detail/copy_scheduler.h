// SPDX-License-Identifier: Apache-2.0
#pragma once

// The queue of a transfer engine, and the threads that serve it. A job is a copy and runs in steps. A step may wait
// for a disk or for one request, but never for another step, so a few threads carry many jobs. The scheduler limits
// the number of running jobs and of threads. The buffer pool limits their memory. Thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "millrace/base/thread/sync.h"

namespace millrace::sync {

class CopyScheduler {
 public:
  // kLight: a small copy, whose steps take about ten microseconds. kHeavy: any other copy.
  enum class Weight { kLight, kHeavy };
  // The event for which a job waits after a step.
  enum class Next {
    kCall,    // resume()
    kTurn,    // the steps that are ready
    kMemory,  // another step returns memory. REQUIRES: the job holds none
    kEnd,     // none: the job has ended
  };
  using Step = std::function<Next()>;

  // The most light jobs that run at once. It equals the number of requests sent to S3 at once. With 64, a server on
  // the same machine was idle for a fifth of the time; 256 was no faster.
  static constexpr int64_t kMostLight = 128;

  // At most `most_heavy` heavy jobs run at once.
  explicit CopyScheduler(int most_heavy);
  // Waits until every job has ended.
  ~CopyScheduler();
  CopyScheduler(const CopyScheduler&) = delete;
  CopyScheduler& operator=(const CopyScheduler&) = delete;

  // Adds a job. `first` runs when there is room. Jobs of one weight begin in the order of add().
  void add(Weight weight, Step first);
  // Adds a step of a running job. It runs at the same time as other steps, or after a step that returned kCall.
  void resume(Weight weight, Step step);

 private:
  struct Task {
    Weight weight = Weight::kLight;
    Step step;
    uint64_t steps_before = 0;  // steps that had ended when this one was taken
  };
  struct Jobs {
    std::deque<Step> waiting;
    int64_t begun = 0;  // running jobs
    int64_t most = 1;
  };

  Jobs& jobs(Weight weight) REQUIRES_LOCK(mutex_) { return weight == Weight::kHeavy ? heavy_ : light_; }
  bool may_begin(const Jobs& jobs) const REQUIRES_LOCK(mutex_);
  // The number of ready steps and of light jobs that may begin.
  int64_t light_work() const REQUIRES_LOCK(mutex_);
  // The number of threads that are awake and in no heavy step.
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
  std::deque<Task> parked_ GUARDED_BY(mutex_);     // wait for memory
  uint64_t steps_ GUARDED_BY(mutex_) = 0;          // steps that ended, and may have returned memory
  int64_t asleep_ GUARDED_BY(mutex_) = 0;          // sleeping threads that were not called yet
  int64_t called_ GUARDED_BY(mutex_) = 0;          // threads that were called and have to wake up
  int64_t in_heavy_steps_ GUARDED_BY(mutex_) = 0;  // threads
  bool is_watched_ GUARDED_BY(mutex_) = false;     // a sleeping thread checks for work by itself
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;  // changed under the mutex; last member, because they use all others
};

}  // namespace millrace::sync
