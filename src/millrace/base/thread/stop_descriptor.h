// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stop token as a file descriptor, so that one poll() waits for the stop, pipes, sockets and processes.

#include <memory>
#include <stop_token>
#include <utility>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/status.h"

namespace millrace {

// Thread-safe.
class StopDescriptor {
 public:
  // Error: resource_exhausted (no descriptor is left).
  [[nodiscard]] static Result<std::unique_ptr<StopDescriptor>> open(const std::stop_token& stop);
  StopDescriptor(const StopDescriptor&) = delete;
  StopDescriptor& operator=(const StopDescriptor&) = delete;

  // The descriptor becomes readable at the stop. Use it only for poll(): a read would consume the stop. It is open as
  // long as this object exists.
  int get() const { return event_.get(); }
  bool is_stopped() const { return stop_.stop_requested(); }

 private:
  struct Signal {
    void operator()() const;
    int event;
  };
  StopDescriptor(Descriptor event, std::stop_token stop)
      : event_(std::move(event)), stop_(std::move(stop)), on_stop_(stop_, Signal{event_.get()}) {}

  const Descriptor event_;
  const std::stop_token stop_;
  const std::stop_callback<Signal> on_stop_;  // declared after the members that it uses
};

}  // namespace millrace
