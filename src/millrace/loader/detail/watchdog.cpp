// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/watchdog.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"

namespace millrace::loader {

// Begins the wait, if none is under way.
Clock::time_point Watchdog::next_alarm() {
  if (limit_.count() == 0) return Clock::time_point::max();
  MutexLock lock(mutex_);
  if (!wait_) {
    const auto now = Clock::now();
    wait_ = Wait{.begun = now, .alarm = now + limit_};
  }
  return wait_->alarm;
}

void Watchdog::end() {
  if (limit_.count() == 0) return;
  MutexLock lock(mutex_);
  wait_.reset();
}

// How long the wait has lasted, when that has to be said now.
std::optional<double> Watchdog::overdue_seconds() {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  if (!wait_ || now < wait_->alarm) return std::nullopt;
  const auto waited = now - wait_->begun;
  wait_->alarm = now + waited;
  if (on_stall_ == OnStall::kRaise) wait_.reset();
  return std::chrono::duration<double>(waited).count();
}

Status Watchdog::alarm_if_due(const std::function<std::string()>& describe) {
  const auto seconds = overdue_seconds();
  if (!seconds) return {};
  std::string text = fmt::format("loader: no batch for {}; {}", format_duration(*seconds), describe());
  if (on_stall_ == OnStall::kRaise) return tl::unexpected(Error(ErrorCode::kUnavailable, std::move(text), ETIMEDOUT));
  log(LogLevel::kWarning, "{}. The wait goes on; on_stall=\"raise\" makes it an error", text);
  return {};
}

}  // namespace millrace::loader
