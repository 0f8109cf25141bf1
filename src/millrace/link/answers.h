// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks whether the bucket answers at all. A request to a silent server fails only after a long time, and so do a
// sweep and the copies that wait for it. Meanwhile, Answers asks for one object and notes in the state the time when
// the bucket became silent (the fact "silent_since"). Thread-safe.

#include <atomic>
#include <stop_token>

#include "millrace/link/state.h"
#include "millrace/storage/url.h"

namespace millrace::link {

class Answers {
 public:
  // Both arguments must outlive the object.
  Answers(const Location& there, LinkState& state) : there_(there), state_(state) {}

  // Says whether the link waits for the bucket now. Only then watch() sends a request every few seconds.
  void set_busy(bool busy) { busy_ = busy; }
  void watch(const std::stop_token& stop);

 private:
  const Location& there_;
  LinkState& state_;
  std::atomic<bool> busy_ = false;
};

}  // namespace millrace::link
