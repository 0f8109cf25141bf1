// SPDX-License-Identifier: Apache-2.0
#pragma once

// Serves small sequential reads from larger ones, for a reader whose every read is a request. Windows grow with the
// length of the sequential run. The next window is requested while the current one is read. Random reads and long
// reads pass through unchanged. Thread-safe.

#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace {

class ReadAhead {
 public:
  using Done = std::function<void(Status)>;
  // Starts a read without waiting. `out` lives until `done` is called; this object may be destroyed earlier.
  using Start = std::function<void(int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                                   Clock::time_point deadline, Done done)>;

  // Reads ahead in an object of `size` bytes. `stop` is passed to every read that `start` begins.
  ReadAhead(int64_t size, Start start, std::stop_token stop = {})
      : size_(size),
        start_(std::move(start)),
        caller_stop_(std::move(stop)),
        stop_with_caller_(caller_stop_, [this] { stop_.request_stop(); }) {}
  ~ReadAhead() { stop_.request_stop(); }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // REQUIRES: the range is inside the object.
  [[nodiscard]] Status read(int64_t offset, std::span<std::byte> out);

 private:
  struct Window;
  std::shared_ptr<Window> open_window(int64_t offset, int64_t size) REQUIRES_LOCK(mutex_);
  // Returns the window with the byte at `offset`; null when the read should bypass windows. `goes_on`: the read began
  // in another window.
  std::shared_ptr<Window> window_at(int64_t offset, int64_t wanted, bool goes_on);
  [[nodiscard]] Status read_directly(int64_t offset, std::span<std::byte> out);

  const int64_t size_;
  const Start start_;
  const std::stop_token caller_stop_;
  std::stop_source stop_;  // stops reading ahead
  const std::stop_callback<std::function<void()>> stop_with_caller_;
  Mutex mutex_;
  std::shared_ptr<Window> current_ GUARDED_BY(mutex_), next_ GUARDED_BY(mutex_);
  int64_t end_ GUARDED_BY(mutex_) = -1;  // end of the last read
  int64_t run_ GUARDED_BY(mutex_) = 0;   // bytes of the sequential run so far
};

}  // namespace millrace
