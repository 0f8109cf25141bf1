// SPDX-License-Identifier: Apache-2.0
#pragma once

// Holds the ended actions of a sync, in its order, until they are as durable as asked and may be reported. Small files
// are made durable together, because a journal commits them at once. Another thread does so while the next files are
// copied.
// Belongs to one thread, which `wake` tells to look for what is durable.

#include <chrono>
#include <functional>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/sync/detail/pending_action.h"

namespace millrace::sync {

class DurableBatches {
 public:
  // Without `together` all that is added is durable already. `target` outlives this. `wake` is called on the other
  // thread.
  DurableBatches(const Location& target, bool together, Progress* progress, std::function<void()> wake);

  void add(std::shared_ptr<PendingAction> pending);
  // Whether what was added waits no longer for more: close() is to be called.
  bool is_full() const;
  // When time alone will make it full. REQUIRES: something was added.
  Clock::time_point full_at() const;
  bool is_empty() const { return added_.empty(); }

  // Begins to make durable what was added, once the batch before it is. Returns what may be reported: that one, and
  // what was added, where all of it is durable already.
  PendingActions close();
  // The batch that is under way, where it is durable by now; else none.
  PendingActions take();
  // The same, and waits for it.
  PendingActions wait();

 private:
  void make_durable();

  const Location& target_;
  const bool together_;
  Progress* const progress_;
  const std::function<void()> wake_;
  PendingActions added_;
  int64_t added_bytes_ = 0;  // bytes of those that are not durable
  Clock::time_point closed_ = Clock::now();
  PendingActions under_way_;  // the other thread's until is_durable_

  Mutex mutex_;
  CondVar changed_;
  bool is_durable_ GUARDED_BY(mutex_) = false;

  Executor syncer_{1, "mr-durable"};  // the last member: its thread ends before what it uses
};

}  // namespace millrace::sync
