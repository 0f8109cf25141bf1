// SPDX-License-Identifier: Apache-2.0
// How often a copied object goes from one thread to another, and how many threads a copy starts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <vector>

#include "millrace/base/thread/answer.h"
#include "millrace/base/thread/sync.h"
#include "millrace/sync/testing.h"
#include "millrace/sync/testing/transfer.h"

namespace millrace::sync {
namespace {

// The threads that the steps of one copy ran on, in the order of the steps.
class Trace {
 public:
  void add_step() {
    const MutexLock lock(mutex_);
    threads_.push_back(::gettid());
  }
  int64_t hand_overs() const {
    const MutexLock lock(mutex_);
    int64_t count = 0;
    for (size_t i = 1; i < threads_.size(); ++i) count += threads_[i] != threads_[i - 1];
    return count;
  }

 private:
  mutable Mutex mutex_;
  std::vector<pid_t> threads_ GUARDED_BY(mutex_);
};

// Traces the thread that delivers a completion.
class TracedQueue final : public CompletionQueue {
 public:
  TracedQueue(Trace& trace, CompletionQueue& next) : trace_(trace), next_(next) {}
  void push(Completion completion) override {
    trace_.add_step();
    next_.push(std::move(completion));
  }

 private:
  Trace& trace_;
  CompletionQueue& next_;
};

// Traces the threads that open, submit and complete.
class TracedSide {
 public:
  TracedSide(const Side& side, Trace& trace) : storage_(std::make_shared<BentStorage>(side.storage)) {
    storage_->on_open = [&trace](std::string_view) { trace.add_step(); };
    storage_->on_write = [&trace](std::string_view) -> Status {
      trace.add_step();
      return {};
    };
    storage_->on_submit = [this, &trace, inner = side.storage](auto operations, CompletionQueue& queue) {
      trace.add_step();
      inner->submit(operations, add_queue(trace, queue));
    };
  }
  Location at(const std::string& key) const { return located(storage_, key); }

 private:
  TracedQueue& add_queue(Trace& trace, CompletionQueue& queue) {
    const MutexLock lock(mutex_);
    return queues_.emplace_back(trace, queue);
  }

  Mutex mutex_;
  std::deque<TracedQueue> queues_ GUARDED_BY(mutex_);
  const std::shared_ptr<BentStorage> storage_;
};

int64_t threads_now() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

class TransferThreads : public TransferTest {
 protected:
  struct Counts {
    int64_t hand_overs = 0, threads = 0;
  };
  // Copies `size` bytes, and counts from the request to its report.
  Counts count(const Side& from, const Side& to, int64_t size) {
    put(from.at("source"), content_of(size, seed_));
    const ObjectInfo source = *from.storage->stat("source");
    Trace trace;
    const TracedSide traced_from(from, trace), traced_to(to, trace);
    const int64_t threads_before = threads_now();
    trace.add_step();
    const auto report = wait_for_answer<Result<TransferReport>>([&](auto answer) {
      engine_->start({.from = traced_from.at("source"),
                      .source = source,
                      .to = traced_to.at("target"),
                      .done = [&trace, answer](Result<TransferReport> copied) {
                        trace.add_step();
                        answer(std::move(copied));
                      }});
    });
    trace.add_step();
    EXPECT_TRUE(report);
    return {trace.hand_overs(), threads_now() - threads_before};
  }
};

// To the scheduler and back to the caller; a read or write by threads of the storage goes there and back. One part is
// read and written to files by the scheduler's thread.
TEST_F(TransferThreads, AnObjectOfOnePartIsHandedOverFourTimesAtMost) {
  const Counts up = count(local_, parts_, 4 * kMiB);
  EXPECT_EQ(up.hand_overs, 2);
  EXPECT_EQ(up.threads, 1);
  const Counts down = count(parts_, other_local_, 4 * kMiB);
  EXPECT_EQ(down.hand_overs, 4);
  EXPECT_LE(down.threads, 3);  // a completion may find the scheduler's first thread not asleep yet
}

// 9 MiB are two parts. Each goes to the storage and back to be read, and to be written: of a file that is sent, to be
// written only.
TEST_F(TransferThreads, EachPartOfALargerObjectIsHandedOverAsOften) {
  const Counts up = count(local_, parts_, 9 * kMiB);
  EXPECT_LE(up.hand_overs, 2 + 2 * 2);
  EXPECT_LE(up.threads, 4);
  const Counts down = count(parts_, other_local_, 9 * kMiB);
  EXPECT_LE(down.hand_overs, 2 + 2 * 4);
  EXPECT_LE(down.threads, 7);
}

}  // namespace
}  // namespace millrace::sync
