// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/copy_scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "millrace/base/io/open_files.h"

// How threads find work:
//
//   add() ──► waiting (light, heavy) ──┐ while there is room and no job is parked
//   resume() ──► ready ────────────────┴──► a thread runs the step ──┬─► kCall: resume() comes, when I/O has ended
//                  ▲                                                 ├─► kTurn: back to ready
//                  └──── one, each time another step has ended ◄─────┴─► kMemory: parked
//
// What is to begin goes first, so that servers have requests to work on.
//
// Memory. A job gives memory back in its steps, so the end of a step is the moment to try a parked job again. Between a
// failed try and the parking another step may have ended: `steps_` tells, and the job is tried at once. While a job is
// parked no other begins, so small jobs cannot keep a large one waiting. A parked job holds no memory; those that hold
// some have requests under way, whose ends make further steps. So there is always a next step.
//
// Threads. To wake a thread costs as much as a light step takes. So light work calls another thread only once each that
// serves it has more than kBacklog steps to do. Where none does, as many steps have to be ready, or all jobs that have
// begun, or kPatience has to pass: the last thread that fell asleep looks by itself. A thread for each answer of a
// server took a fifth more CPU to send 6,000 files of 16 KiB. A heavy step takes milliseconds and may wait for a disk;
// each calls a thread.

namespace millrace::sync {
namespace {

constexpr int64_t kBacklog = 4;  // A choice: four light steps outweigh a wake-up, which costs as much as one
constexpr std::chrono::milliseconds kPatience(2);  // about what a server on this machine takes for a request
// Parts that a server copies wait for its answer in a step, so even one job at a time has use for some threads.
constexpr int kFewestThreads = 8;

}  // namespace

CopyScheduler::CopyScheduler(int most_heavy)
    : most_threads_(static_cast<size_t>(std::max(most_heavy, kFewestThreads))) {
  heavy_.most = most_heavy;
  // Each may have a file open, beside the connections that they go over.
  light_.most = std::clamp<int64_t>(open_file_limit() / 4, 1, kMostLight);
}

CopyScheduler::~CopyScheduler() {
  {
    MutexLock lock(mutex_);
    const auto is_idle = [](const Jobs& jobs) { return jobs.begun == 0 && jobs.waiting.empty(); };
    while (!is_idle(light_) || !is_idle(heavy_)) ended_.wait(mutex_);
    is_ending_ = true;
    wanted_.notify_all();
  }
  threads_.clear();
}

void CopyScheduler::add(Weight weight, Step first) {
  MutexLock lock(mutex_);
  jobs(weight).waiting.push_back(std::move(first));
  if (may_begin(jobs(weight))) call_thread(weight);
}

void CopyScheduler::resume(Weight weight, Step step) {
  MutexLock lock(mutex_);
  ready_.push_back({.weight = weight, .step = std::move(step)});
  call_thread(weight);
}

bool CopyScheduler::may_begin(const Jobs& jobs) const {
  return !jobs.waiting.empty() && jobs.begun < jobs.most && parked_.empty();
}

int64_t CopyScheduler::light_work() const {
  const int64_t beginning = may_begin(light_) ? std::min(std::ssize(light_.waiting), light_.most - light_.begun) : 0;
  return std::ssize(ready_) + beginning;
}

void CopyScheduler::call_thread(Weight weight) {
  const int64_t work = light_work();
  const bool is_served = serving() > 0 && work <= kBacklog * serving();
  const bool is_little = is_watched_ && work <= kBacklog && work < light_.begun;
  if (weight == Weight::kLight && (is_served || (serving() == 0 && is_little))) return;
  if (asleep_ > 0) {
    --asleep_;
    ++called_;
    wanted_.notify_one();
  } else if (threads_.size() < most_threads_) {
    threads_.emplace_back("mr-copy", [this] { serve(); });
  }
}

bool CopyScheduler::take(Task& task) {
  task = {};
  for (const Weight weight : {Weight::kHeavy, Weight::kLight}) {
    Jobs& some = jobs(weight);
    if (!may_begin(some)) continue;
    ++some.begun;
    task = {.weight = weight, .step = std::move(some.waiting.front())};
    some.waiting.pop_front();
    break;
  }
  if (!task.step && ready_.empty()) return false;
  if (!task.step) {
    task = std::move(ready_.front());
    ready_.pop_front();
  }
  task.steps_before = steps_;
  in_heavy_steps_ += task.weight == Weight::kHeavy;
  return true;
}

void CopyScheduler::put_back(Task task, Next next) {
  in_heavy_steps_ -= task.weight == Weight::kHeavy;
  if (next == Next::kMemory) {
    const bool is_late = task.steps_before != steps_;
    return (is_late ? ready_ : parked_).push_front(std::move(task));
  }
  ++steps_;
  if (next == Next::kEnd && --jobs(task.weight).begun == 0) ended_.notify_all();
  if (next == Next::kTurn) ready_.push_back(std::move(task));
  if (parked_.empty()) return;
  ready_.push_front(std::move(parked_.front()));
  parked_.pop_front();
}

void CopyScheduler::sleep() {
  ++asleep_;
  while (called_ == 0 && !is_ending_) {
    if (is_watched_ || light_.begun == 0) {
      wanted_.wait(mutex_);
      continue;
    }
    is_watched_ = true;
    wanted_.wait_until(mutex_, Clock::now() + kPatience);
    is_watched_ = false;
    if (called_ > 0 || light_work() <= kBacklog * serving()) continue;
    --asleep_;
    return;
  }
  if (!is_ending_) --called_;
}

void CopyScheduler::serve() {
  for (;;) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (!take(task)) {
        if (is_ending_) return;
        sleep();
      }
    }
    const Next next = task.step();
    MutexLock lock(mutex_);
    put_back(std::move(task), next);
  }
}

}  // namespace millrace::sync
