// SPDX-License-Identifier: Apache-2.0
#pragma once

// An object of any storage that Python uses by several calls. Ctrl-C can end each call.

#include <functional>
#include <string>

#include "millrace/python/interruptible.h"

namespace millrace::python {

// The location of an object and the stop source that its calls share. Ctrl-C during a call that waits for a server
// stops the object; it cannot be used afterwards.
class StoppableObject {
 public:
  explicit StoppableObject(const std::string& url) : location_(unwrap(open_url(url))) {
    Location own = location_.with_stop(stop_.get_token());
    waits_for_server_ = own.storage != location_.storage;
    location_ = std::move(own);
  }
  const Location& location() const { return location_; }
  std::stop_token stop() const { return stop_.get_token(); }

  // Runs `call` without the GIL and returns its result.
  template <class T>
  T run(const std::function<Result<T>()>& call) const {
    if (!waits_for_server_) return without_gil(call);
    return interruptible<T>([&](const std::stop_token& stop) {
      const std::stop_callback stop_all(stop, [all = stop_]() mutable { all.request_stop(); });
      return call();
    });
  }

 private:
  std::stop_source stop_;
  Location location_;
  bool waits_for_server_ = false;
};

}  // namespace millrace::python
