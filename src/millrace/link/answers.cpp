// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/answers.h"

#include "millrace/base/thread/sync.h"
#include "millrace/link/wall_clock.h"

namespace millrace::link {

void Answers::watch(const std::stop_token& stop) {
  constexpr std::chrono::seconds kEvery(5);
  const StopScope scope(stop);
  const std::string key = there_.child(".millrace/link-answer").key;  // that is not there is an answer
  const auto note = [&](const std::string& since) {
    // A state that cannot be written says so elsewhere.
    static_cast<void>(state_.set_fact("silent_since", since).and_then([&] { return state_.commit(); }));
  };
  bool silent = false;
  note("");
  while (sleep_until(Clock::now() + kEvery, stop)) {
    if (!silent && !busy_) continue;
    // Before the question: it may take minutes.
    if (!silent) note(std::to_string(static_cast<int64_t>(wall_now_s())));
    const auto info = there_.storage->stat(key);
    if (stop.stop_requested()) return;
    const ErrorCode code = info ? ErrorCode::kNotFound : info.error().code();
    silent = code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout;
    if (!silent) note("");
  }
}

}  // namespace millrace::link
