// SPDX-License-Identifier: Apache-2.0
#pragma once

// The actions of a sync that have begun and are not reported yet. They end in any order. They are reported in the
// order of their paths, as the record and the output require, and only once they are as durable as requested. Belongs
// to the thread of the sync, except for end().

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "millrace/base/thread/sync.h"
#include "millrace/sync/detail/durable_batches.h"
#include "millrace/sync/detail/pending_action.h"

namespace millrace::sync {

class ActionWindow {
 public:
  using ReportActions = std::function<void(PendingActions)>;
  // At most `most_at_work` actions are started and not ended. `batched`: passed to DurableBatches as `together`.
  // REQUIRES: `target` outlives this object.
  ActionWindow(const Location& target, bool batched, int64_t most_at_work, Progress* progress, ReportActions report);

  // Adds the next action in order. `starts`: the action ends at end(); false: it has already ended.
  void add(std::shared_ptr<PendingAction> pending, bool starts);
  // Marks an action as ended. May be called on any thread.
  void end(PendingAction& pending);

  // Reports ended actions. Returns when another action may begin.
  void make_room();
  // Waits for all actions and reports them.
  void drain();

 private:
  void settle(int64_t most, int64_t fewest, size_t most_open);
  void wait_for_end(int64_t fewest) REQUIRES_LOCK(mutex_);
  bool has_ended_front() const REQUIRES_LOCK(mutex_) { return !open_.empty() && open_.front()->is_done; }

  const int64_t most_at_work_;
  const ReportActions report_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<PendingAction>> open_ GUARDED_BY(mutex_);  // mutex_ also guards their `is_done`
  int64_t at_work_ GUARDED_BY(mutex_) = 0;
  int64_t awaited_ GUARDED_BY(mutex_) = -1;  // wakes the sync's thread at this number of actions at work
  DurableBatches batches_;                   // last member, because its thread uses the others
};

}  // namespace millrace::sync
