// SPDX-License-Identifier: Apache-2.0
#pragma once

// The actions of a sync that have begun and are not reported yet. They end in any order and are reported in theirs,
// because the record and the output are in the order of the paths, and not before they are as durable as they are to
// be. Belongs to the thread of the sync, but for end().

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
  // At most `most_at_work` have been started and not ended. `batched`: as `together` of DurableBatches. `target`
  // outlives this.
  ActionWindow(const Location& target, bool batched, int64_t most_at_work, Progress* progress, ReportActions report);

  // The next one in order. `starts`: it is done once end() was called for it, else it is done now.
  void add(std::shared_ptr<PendingAction> pending, bool starts);
  // On any thread.
  void end(PendingAction& pending);

  // Reports what ended, and returns when another action may begin.
  void make_room();
  // Waits for all of them, and reports them.
  void drain();

 private:
  void settle(int64_t most, int64_t fewest, size_t most_open);
  void wait_for_end(int64_t fewest) REQUIRES_LOCK(mutex_);
  bool has_ended_front() const REQUIRES_LOCK(mutex_) { return !open_.empty() && open_.front()->is_done; }

  const int64_t most_at_work_;
  const ReportActions report_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<PendingAction>> open_ GUARDED_BY(mutex_);  // and `is_done` of each
  int64_t at_work_ GUARDED_BY(mutex_) = 0;
  int64_t awaited_ GUARDED_BY(mutex_) = -1;  // wake the sync's thread when so few are at work
  DurableBatches batches_;                   // the last member: its thread ends before what it uses
};

}  // namespace millrace::sync
