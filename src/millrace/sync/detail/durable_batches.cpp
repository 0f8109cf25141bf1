// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/durable_batches.h"

#include <algorithm>
#include <string>
#include <utility>

namespace millrace::sync {
namespace {

// A batch costs a commit of the journal and one or two flushes of the disk, some milliseconds, whatever is in it; after
// a kill it is copied again. Choices: with 256 files that is some 10 us a file; 64 MiB are written in a tenth of a
// second; and no file waits longer than a second to be reported.
constexpr size_t kMostFiles = 256;
constexpr int64_t kMostBytes = 64 << 20;
constexpr auto kLongestWait = std::chrono::seconds(1);

}  // namespace

DurableBatches::DurableBatches(const Location& target, bool together, Progress* progress, std::function<void()> wake)
    : target_(target), together_(together), progress_(progress), wake_(std::move(wake)) {}

void DurableBatches::add(std::shared_ptr<PendingAction> pending) {
  added_bytes_ += pending->is_durable ? 0 : pending->action.size;
  added_.push_back(std::move(pending));
}

bool DurableBatches::is_full() const {
  return !added_.empty() &&
         (!together_ || added_.size() >= kMostFiles || added_bytes_ >= kMostBytes || Clock::now() >= full_at());
}

Clock::time_point DurableBatches::full_at() const {
  return closed_ + kLongestWait;
}

PendingActions DurableBatches::close() {
  PendingActions durable = wait();
  closed_ = Clock::now();
  added_bytes_ = 0;
  if (std::all_of(added_.begin(), added_.end(), [](const auto& pending) { return pending->is_durable; })) {
    std::move(added_.begin(), added_.end(), std::back_inserter(durable));
    added_.clear();
    return durable;
  }
  under_way_ = std::exchange(added_, {});
  syncer_.submit([this] { make_durable(); });
  return durable;
}

PendingActions DurableBatches::take() {
  MutexLock lock(mutex_);
  if (!is_durable_) return {};
  is_durable_ = false;
  return std::exchange(under_way_, {});
}

PendingActions DurableBatches::wait() {
  if (under_way_.empty()) return {};
  MutexLock lock(mutex_);
  while (!is_durable_) changed_.wait(mutex_);
  is_durable_ = false;
  return std::exchange(under_way_, {});
}

void DurableBatches::make_durable() {
  std::vector<PendingAction*> visible;
  std::vector<std::string> keys;
  for (const auto& pending : under_way_) {
    if (pending->is_durable) continue;
    visible.push_back(pending.get());
    keys.push_back(target_.child(pending->action.path).key);
  }
  if (const Status durable = target_.storage->make_durable(keys); !durable) {
    // All of them: a file system reports an error once, and answers the next question about a single file with success.
    for (PendingAction* const pending : visible) pending->fail_with(durable.error(), progress_);
  }
  {
    MutexLock lock(mutex_);
    is_durable_ = true;
    changed_.notify_all();
  }
  wake_();
}

}  // namespace millrace::sync
