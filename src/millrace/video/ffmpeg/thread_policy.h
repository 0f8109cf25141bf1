// SPDX-License-Identifier: Apache-2.0
#pragma once

// Takes back what an encoder does to the scheduling of threads. SVT-AV1, where the process is root's, puts the thread
// that opens it and all threads of its own under SCHED_FIFO with priority 99 (EbThreads.c, check_set_prio): until they
// wait, nothing else of the machine runs on their processors.

#include <pthread.h>
#include <sched.h>

#include <vector>

namespace millrace::video {

class ThreadPolicy {
 public:
  // Remembers how the calling thread is scheduled, and which threads the process has.
  ThreadPolicy();
  // Schedules the calling thread, and those that were not there before, as it was. To be called on the same thread.
  void restore() const;

 private:
  int policy_ = SCHED_OTHER;
  sched_param param_{};
  std::vector<pid_t> threads_;  // sorted
};

}  // namespace millrace::video
