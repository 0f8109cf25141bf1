// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whether the bucket answers at all. A request to a server that is silent ends after a long time only, and so do a
// sweep and the copies that wait for it: meanwhile this asks for one object, and notes in the state since when nothing
// came back (the fact "silent_since"). Thread-safe.

#include <atomic>
#include <stop_token>

#include "millrace/link/state.h"
#include "millrace/storage/url.h"

namespace millrace::link {

class Answers {
 public:
  // Both outlive it.
  Answers(const Location& there, LinkState& state) : there_(there), state_(state) {}

  // Whether the link waits for the bucket now: only then it is asked, a request every few seconds.
  void set_busy(bool busy) { busy_ = busy; }
  void watch(const std::stop_token& stop);

 private:
  const Location& there_;
  LinkState& state_;
  std::atomic<bool> busy_ = false;
};

}  // namespace millrace::link
