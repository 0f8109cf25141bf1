// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/opening.h"

#include <utility>

#include "millrace/loader/detail/wait_error.h"

namespace millrace::loader {

Status Opening::wait(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  if (!is_done_ && !is_running_ && !is_stopped_ && is_error_answered_) begin();
  const uint64_t attempt = is_running_ ? ended_ : ended_ - 1;
  while (!is_done_ && !is_stopped_ && ended_ == attempt) {
    if (!changed_.wait_until(mutex_, deadline) && Clock::now() >= deadline && ended_ == attempt) {
      return fail(ErrorCode::kTimeout, "the dataset is still being opened");
    }
  }
  if (is_done_) return {};
  if (is_stopped_) return fail(ErrorCode::kCancelled, "the loader is closed");
  is_error_answered_ = true;
  return tl::unexpected(*error_);
}

void Opening::begin() {
  is_running_ = true;
  thread_ = Thread("mr-open", [this] { run(); });  // the one before has ended
}

void Opening::run() {
  Status opened = open_();
  MutexLock lock(mutex_);
  is_running_ = false;
  ++ended_;
  is_done_ = opened.has_value();
  is_error_answered_ = is_done_;
  if (!opened) error_ = as_final(std::move(opened).error());
  changed_.notify_all();
}

void Opening::stop() {
  Thread ending;
  {
    MutexLock lock(mutex_);
    is_stopped_ = true;
    ending = std::move(thread_);
    changed_.notify_all();
  }
}

}  // namespace millrace::loader
