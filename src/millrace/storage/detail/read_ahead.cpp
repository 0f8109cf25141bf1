// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/detail/read_ahead.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/thread/answer.h"

namespace millrace {
namespace {

constexpr int64_t kLongRead = 1 << 20;  // passes through: a request of its own is cheap at this length
// The first window is Linux's default read-ahead. The largest takes about as long to arrive as a request's latency, at
// the 80 MB/s of a connection.
constexpr int64_t kFirstWindow = 128 << 10, kLargestWindow = 4 << 20;
constexpr int64_t kSkip = 256 << 10;  // a run may skip this much: small members of a tar that are not read

}  // namespace

struct ReadAhead::Window {
  Window(int64_t offset, int64_t bytes) : begin(offset), data(static_cast<size_t>(bytes)) {}
  int64_t end() const { return begin + std::ssize(data); }
  bool holds(int64_t offset) const { return offset >= begin && offset < end(); }
  void finish(Status status) {
    {
      MutexLock lock(mutex);
      result = std::move(status);
    }
    finished.notify_all();  // after unlocking: the woken thread takes the lock
  }
  Status wait() {
    MutexLock lock(mutex);
    while (!result) finished.wait(mutex);
    return *result;
  }

  const int64_t begin;
  std::vector<std::byte> data;
  Mutex mutex;
  CondVar finished;
  std::optional<Status> result GUARDED_BY(mutex);
};

std::shared_ptr<ReadAhead::Window> ReadAhead::open_window(int64_t offset, int64_t size) {
  auto window = std::make_shared<Window>(offset, std::min(size, size_ - offset));
  start_(offset, window->data, stop_.get_token(), Clock::time_point::max(),
         [window](Status status) { window->finish(std::move(status)); });
  return window;
}

std::shared_ptr<ReadAhead::Window> ReadAhead::window_at(int64_t offset, int64_t wanted, bool goes_on) {
  MutexLock lock(mutex_);
  const bool follows = goes_on || (end_ >= 0 && offset >= end_ && offset - end_ < kSkip);
  run_ = follows ? run_ + wanted : wanted;
  end_ = offset + wanted;
  if (next_ && next_->holds(offset)) current_ = std::exchange(next_, nullptr);
  const bool held = current_ && current_->holds(offset);
  if (!held && !follows) return nullptr;
  if (!held) {
    next_ = nullptr;
    current_ = open_window(offset, std::clamp(2 * run_, kFirstWindow, kLargestWindow));
  } else if (!next_ && follows && current_->end() < size_) {
    next_ = open_window(current_->end(), std::min(2 * std::ssize(current_->data), kLargestWindow));
  }
  return current_;
}

Status ReadAhead::read_directly(int64_t offset, std::span<std::byte> out) {
  return wait_for_answer<Status>([&](auto done) { start_(offset, out, caller_stop_, Clock::time_point::max(), done); });
}

Status ReadAhead::read(int64_t offset, std::span<std::byte> out) {
  if (std::ssize(out) >= kLongRead) return read_directly(offset, out);
  for (bool goes_on = false; !out.empty(); goes_on = true) {
    const auto window = window_at(offset, std::ssize(out), goes_on);
    if (!window) return read_directly(offset, out);
    RETURN_IF_ERROR(window->wait());
    const auto at = static_cast<size_t>(offset - window->begin);
    const size_t size = std::min(out.size(), window->data.size() - at);
    std::memcpy(out.data(), window->data.data() + at, size);
    out = out.subspan(size);
    offset += static_cast<int64_t>(size);
  }
  return {};
}

}  // namespace millrace
