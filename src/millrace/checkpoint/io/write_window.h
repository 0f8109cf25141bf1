// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bounds the number of writes under way for one file and keeps their first error.

#include <functional>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/io/first_error.h"
#include "millrace/storage/storage.h"

namespace millrace::checkpoint {

// Returns how many writes to keep under way. 16 keep a disk or a disk array busy; a service needs one connection for
// each.
inline int writes_under_way(const Storage& storage) {
  return storage.capabilities().is_local() ? 16 : 128;
}

// Bytes of one write to a file. Direct writes of 1 to 16 MiB were equally fast; larger writes mean fewer calls.
inline constexpr int64_t kWriteBytes = 8 << 20;

// Returns how many pieces to submit together. For a service that checks parts by MD5, the storage hashes the pieces in
// parallel (Storage::submit). A disk gains nothing from it.
inline int writes_together(const Writer& writer) {
  return writer.part_bytes() != 0 ? 16 : 1;
}

// Thread-safe. REQUIRES: drain() before it is destroyed.
class WriteWindow final : public CompletionQueue {
 public:
  // `ended`: called with the write's tag whenever a write has ended, on any thread, before acquire() finds room.
  explicit WriteWindow(int most, std::function<void(uint64_t tag)> ended = {})
      : ended_(std::move(ended)), free_(most) {}

  // Waits for room for `count` writes together. REQUIRES: count <= most.
  void acquire(int count = 1) {
    MutexLock lock(mutex_);
    while (free_ < count) changed_.wait(mutex_);
    free_ -= count;
    under_way_ += count;
  }
  void push(Completion completion) override {
    if (ended_) ended_(completion.tag);
    MutexLock lock(mutex_);
    if (!completion.status) error_.set(std::move(completion.status).error());
    ++free_;
    --under_way_;
    changed_.notify_all();  // under the lock: drain()'s caller destroys this
  }
  // Returns the room of `count` writes that acquire() was called for and that are not submitted.
  void give_back(int count) {
    MutexLock lock(mutex_);
    free_ += count;
    under_way_ -= count;
    changed_.notify_all();
  }
  void fail_with(Error error) { error_.set(std::move(error)); }
  bool failed() const { return error_.failed(); }
  [[nodiscard]] Status drain() {
    MutexLock lock(mutex_);
    while (under_way_ > 0) changed_.wait(mutex_);
    return error_.status();
  }

 private:
  const std::function<void(uint64_t tag)> ended_;
  Mutex mutex_;
  CondVar changed_;
  int free_ GUARDED_BY(mutex_);
  int under_way_ GUARDED_BY(mutex_) = 0;
  FirstError error_;
};

}  // namespace millrace::checkpoint
