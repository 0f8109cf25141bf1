// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/durable_batches.h"

#include <algorithm>
#include <string>
#include <utility>

namespace millrace::sync {
namespace {

// After a kill they are copied again.
constexpr size_t kMostFiles = 256;
constexpr int64_t kMostBytes = 64 << 20;
constexpr auto kLongestWait = std::chrono::seconds(1);  // for a batch to fill

}  // namespace

DurableBatches::DurableBatches(const Location& target, bool together, Progress* progress, std::function<void()> wake)
    : target_(target), together_(together), progress_(progress), wake_(std::move(wake)) {}

void DurableBatches::add(std::shared_ptr<Slot> slot) {
  added_bytes_ += slot->is_durable ? 0 : slot->action.size;
  added_.push_back(std::move(slot));
}

bool DurableBatches::is_full() const {
  return !added_.empty() && (!together_ || added_.size() >= kMostFiles || added_bytes_ >= kMostBytes ||
                             Clock::now() >= closed_ + kLongestWait);
}

Slots DurableBatches::close() {
  Slots durable = wait();
  closed_ = Clock::now();
  added_bytes_ = 0;
  if (std::all_of(added_.begin(), added_.end(), [](const auto& slot) { return slot->is_durable; })) {
    std::move(added_.begin(), added_.end(), std::back_inserter(durable));
    added_.clear();
    return durable;
  }
  under_way_ = std::exchange(added_, {});
  syncer_.submit([this] { make_durable(); });
  return durable;
}

Slots DurableBatches::take() {
  MutexLock lock(mutex_);
  if (!is_durable_) return {};
  is_durable_ = false;
  return std::exchange(under_way_, {});
}

Slots DurableBatches::wait() {
  if (under_way_.empty()) return {};
  MutexLock lock(mutex_);
  while (!is_durable_) changed_.wait(mutex_);
  is_durable_ = false;
  return std::exchange(under_way_, {});
}

void DurableBatches::make_durable() {
  std::vector<Slot*> visible;
  std::vector<std::string> keys;
  for (const auto& slot : under_way_) {
    if (slot->is_durable) continue;
    visible.push_back(slot.get());
    keys.push_back(target_.child(slot->action.path).key);
  }
  if (const Status durable = target_.storage->make_durable(keys); !durable) {
    // All of them: a file system tells of an error once, and whoever asks again for one hears that it is well.
    for (Slot* const slot : visible) slot->fail_with(durable.error(), progress_);
  }
  {
    MutexLock lock(mutex_);
    is_durable_ = true;
    changed_.notify_all();
  }
  wake_();
}

}  // namespace millrace::sync
