// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns SIGINT and SIGTERM into a stop request, and a second one into an immediate end with status 128 + signal.
// Create the object in the main thread before any other thread, because it blocks the two signals in that thread. Its
// destructor unblocks them. A signal that was ignored when the program started (nohup, a background job) stays
// ignored.

#include <memory>
#include <optional>
#include <stop_token>

namespace millrace::cli {

class SignalStop {
 public:
  SignalStop();
  ~SignalStop();
  SignalStop(const SignalStop&) = delete;
  SignalStop& operator=(const SignalStop&) = delete;

  std::stop_token token() const;
  // Returns the first signal that arrived.
  std::optional<int> received() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cli
