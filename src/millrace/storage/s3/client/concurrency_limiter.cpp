// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/concurrency_limiter.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::s3 {
namespace {

constexpr double kShrink = 0.6;  // TCP halves (RFC 5681); a server's 503 comes earlier than a lost packet
constexpr double kSmallestWindow = 1;
// For this long after a shrink, refusals do not shrink again: they answer requests that were sent before it. Several
// round trips within a region.
constexpr auto kShrinkPause = std::chrono::milliseconds(100);
// What the limits let through at once after a pause: as much as they allow in this time.
constexpr auto kBurst = std::chrono::milliseconds(100);

Clock::duration to_duration(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace

// Token buckets, kept as the moment at which the next token is there.
Clock::time_point ConcurrencyLimiter::reserve(int64_t bytes) {
  const auto now = Clock::now();
  Clock::time_point begin = now;
  const auto take = [&](Clock::time_point& next, double amount, double rate) {
    if (rate <= 0) return;
    next = std::max(next, now - kBurst);
    begin = std::max(begin, next);
    next += to_duration(amount / rate);
  };
  take(next_request_, 1, limits_.requests_per_second);
  take(next_byte_, static_cast<double>(bytes), limits_.bytes_per_second);
  return begin;
}

void ConcurrencyLimiter::enter(int64_t bytes, Go go) {
  Clock::time_point begin;
  {
    MutexLock lock(mutex_);
    if (under_way_ >= static_cast<int>(window_) || !waiting_.empty()) {
      waiting_.push_back({bytes, std::move(go)});
      return;
    }
    ++under_way_;
    begin = reserve(bytes);
  }
  go(begin);
}

void ConcurrencyLimiter::slow_down(Clock::time_point now) {
  MutexLock lock(mutex_);
  if (now - shrunk_ < kShrinkPause) return;
  shrunk_ = now;
  window_ = std::max(kSmallestWindow, window_ * kShrink);
}

void ConcurrencyLimiter::leave() {
  std::vector<std::pair<Go, Clock::time_point>> ready;
  {
    MutexLock lock(mutex_);
    --under_way_;
    window_ = std::min<double>(limits_.max_under_way, window_ + 1 / window_);
    while (!waiting_.empty() && under_way_ < static_cast<int>(window_)) {
      ++under_way_;
      ready.emplace_back(std::move(waiting_.front().go), reserve(waiting_.front().bytes));
      waiting_.pop_front();
    }
  }
  for (auto& [go, begin] : ready) go(begin);
}

double ConcurrencyLimiter::window() const {
  MutexLock lock(mutex_);
  return window_;
}

int ConcurrencyLimiter::under_way() const {
  MutexLock lock(mutex_);
  return under_way_;
}

}  // namespace millrace::s3
