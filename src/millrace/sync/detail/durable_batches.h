// SPDX-License-Identifier: Apache-2.0
#pragma once

// Holds the ended actions of a sync in order, until they are as durable as requested and may be reported. Small files
// are made durable together, because a journal commits them at once. Another thread does so while the next files are
// copied. Belongs to one thread. `wake` tells that thread to call take().

#include <chrono>
#include <functional>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/sync/detail/pending_action.h"

namespace millrace::sync {

class DurableBatches {
 public:
  // Without `together`, all added actions are already durable. `wake` is called on the other thread. REQUIRES:
  // `target` outlives this object.
  DurableBatches(const Location& target, bool together, Progress* progress, std::function<void()> wake);

  void add(std::shared_ptr<PendingAction> pending);
  // Whether the added actions are to be closed now with close(): they are many or large enough, or have waited long
  // enough.
  bool is_full() const;
  // Returns when is_full() becomes true at the latest. REQUIRES: an action was added.
  Clock::time_point full_at() const;
  bool is_empty() const { return added_.empty(); }

  // Waits for the batch under way, then begins to make the added actions durable as the next batch. Returns the
  // actions that may be reported: the finished batch, and the added actions if all of them are already durable.
  PendingActions close();
  // Returns the batch under way if it is durable by now; else none.
  PendingActions take();
  // Waits for the batch under way and returns it.
  PendingActions wait();

 private:
  void make_durable();

  const Location& target_;
  const bool together_;
  Progress* const progress_;
  const std::function<void()> wake_;
  PendingActions added_;
  int64_t added_bytes_ = 0;  // bytes of the added actions that are not durable
  Clock::time_point closed_ = Clock::now();
  PendingActions under_way_;  // belongs to the other thread until is_durable_

  Mutex mutex_;
  CondVar changed_;
  bool is_durable_ GUARDED_BY(mutex_) = false;

  Executor syncer_{1, "mr-durable"};  // last member, because its thread uses all others
};

}  // namespace millrace::sync
