// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stop token as a file descriptor: poll() waits for it beside pipes, sockets and processes.

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

  // Readable from the stop on. Only for poll(): a read would take the stop away. Open as long as this object.
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
  const std::stop_callback<Signal> on_stop_;  // after what it uses
};

}  // namespace millrace
