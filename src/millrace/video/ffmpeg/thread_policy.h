// SPDX-License-Identifier: Apache-2.0
#pragma once

// Undoes changes that an encoder makes to the scheduling of threads. In a process of root, SVT-AV1 puts its own
// threads and the thread that opens it under SCHED_FIFO with priority 99 (EbThreads.c, check_set_prio). Until such a
// thread waits, nothing else on the machine runs on its processor.

#include <pthread.h>
#include <sched.h>

#include <vector>

namespace millrace::video {

class ThreadPolicy {
 public:
  // Remembers the scheduling of the calling thread and the threads of the process.
  ThreadPolicy();
  // Gives the calling thread, and all threads created since, the remembered scheduling. Call it on the same thread.
  void restore() const;

 private:
  int policy_ = SCHED_OTHER;
  sched_param param_{};
  std::vector<pid_t> threads_;  // sorted
};

}  // namespace millrace::video
