// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/action_window.h"

#include <utility>

namespace millrace::sync {
namespace {

constexpr size_t kMostOpen = 100 << 10;  // begun or waiting for an earlier one; a kilobyte each, so some 100 MB
// An action that ended waits so long for others to be reported with: below what a person takes for a pause.
constexpr auto kReportWait = std::chrono::milliseconds(100);

}  // namespace

ActionWindow::ActionWindow(const Location& target, bool batched, int64_t most_at_work, Progress* progress,
                           ReportActions report)
    : most_at_work_(most_at_work), report_(std::move(report)), batches_(target, batched, progress, [this] {
        MutexLock lock(mutex_);
        changed_.notify_all();
      }) {}

void ActionWindow::add(std::shared_ptr<PendingAction> pending, bool starts) {
  MutexLock lock(mutex_);
  pending->is_done = !starts;
  at_work_ += starts;
  open_.push_back(std::move(pending));
}

void ActionWindow::end(PendingAction& pending) {
  MutexLock lock(mutex_);
  pending.is_done = true;
  --at_work_;
  if (at_work_ <= awaited_ || open_.front().get() == &pending) changed_.notify_all();
}

// The sync's thread sleeps until a quarter of the window is free, not for each action that ends: it plans some dozens
// at once then, and the threads that copy always have something to do.
void ActionWindow::make_room() {
  settle(most_at_work_, most_at_work_ - most_at_work_ / 4, kMostOpen);
}

void ActionWindow::drain() {
  settle(0, 0, 0);
  report_(batches_.close());
  report_(batches_.wait());
}

// Returns at once where at most `most` are at work and `most_open` are open; else waits until only `fewest` are at
// work.
void ActionWindow::settle(int64_t most, int64_t fewest, size_t most_open) {
  for (bool waits = false;;) {
    PendingActions durable;
    {
      MutexLock lock(mutex_);
      for (; has_ended_front(); open_.pop_front()) batches_.add(std::move(open_.front()));
      durable = batches_.take();
      if (durable.empty() && !batches_.is_full()) {
        if (at_work_ <= (waits ? fewest : most) && open_.size() <= most_open) return;
        waits = true;
        wait_for_end(fewest);
        continue;
      }
    }
    report_(std::move(durable));
    if (batches_.is_full()) report_(batches_.close());
  }
}

// Returns when few are at work, when a batch is durable or due, or when there is something to report. May return early.
void ActionWindow::wait_for_end(int64_t fewest) {
  awaited_ = fewest;
  if (batches_.is_empty()) {
    changed_.wait(mutex_);
  } else {
    changed_.wait_until(mutex_, batches_.full_at());
  }
  if (at_work_ > fewest && has_ended_front()) changed_.wait_until(mutex_, Clock::now() + kReportWait);
  awaited_ = -1;
}

}  // namespace millrace::sync
