// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/request_hedger.h"

#include <algorithm>
#include <bit>

namespace millrace::s3 {
namespace {

constexpr size_t kLearnEvery = 32;  // and not before this many are known: a 95th percentile of fewer is their maximum
constexpr double kOfMedian = 3;     // keeps a slow link quiet: there all GETs take about the median
constexpr auto kShortest = std::chrono::milliseconds(20);  // a shorter lag is not worth a request
constexpr auto kTick = std::chrono::milliseconds(5);       // GETs whose patience ends together are handled together
constexpr int64_t kMemoryBytes = 8 << 20;                  // one piece of a read (object/ranged_read.cpp)
constexpr int64_t kOneOf = 20;     // 5 % more requests at most, as in Dean and Barroso's example
constexpr int64_t kHeadStart = 2;  // second requests before twenty GETs have been made

size_t class_of(int64_t bytes) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))));
}

}  // namespace

RequestHedger::~RequestHedger() {
  Thread ending;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    ending = std::move(thread_);
  }
}

void RequestHedger::ended(int64_t bytes, Clock::duration took) {
  ended_.fetch_add(1, std::memory_order_relaxed);
  Times& times = times_[std::min(class_of(bytes), kClasses - 1)];
  MutexLock lock(times.mutex);
  times.seconds[times.count++ % kKept] = std::chrono::duration<float>(took).count();
  if (times.count % kLearnEvery != 0) return;
  std::array<float, kKept> sorted = times.seconds;
  const size_t known = std::min(times.count, kKept);
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(known));
  const double longest = std::max<double>(sorted[known * 95 / 100], kOfMedian * sorted[known / 2]);
  const auto patience = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(longest));
  times.patience_ns = std::max<std::chrono::nanoseconds>(patience, kShortest).count();
}

std::optional<Clock::duration> RequestHedger::patience(int64_t bytes) const {
  const int64_t known = times_[std::min(class_of(bytes), kClasses - 1)].patience_ns.load(std::memory_order_relaxed);
  if (known == 0) return std::nullopt;
  return std::chrono::nanoseconds(known);
}

void RequestHedger::watch(Clock::duration after, std::function<void()> look) {
  const auto when = Clock::now() + after;
  MutexLock lock(mutex_);
  const bool is_first = watched_.empty() || when < watched_.begin()->first;
  watched_.emplace(when, std::move(look));
  if (!thread_.joinable()) {
    thread_ = Thread("mr-s3-late", [this] { run(); });
  } else if (is_first) {
    changed_.notify_all();
  }
}

void RequestHedger::run() {
  std::vector<std::function<void()>> due;
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && watched_.empty()) changed_.wait(mutex_);
      if (stopping_) return;
      changed_.wait_until(mutex_, std::max(watched_.begin()->first, Clock::now() + kTick));
      if (stopping_) return;
      while (!watched_.empty() && watched_.begin()->first <= Clock::now()) {
        due.push_back(std::move(watched_.begin()->second));
        watched_.erase(watched_.begin());
      }
    }
    for (const auto& look : due) look();
    due.clear();
  }
}

bool RequestHedger::take(int64_t bytes) {
  if (sent_.load() >= kHeadStart + ended_.load() / kOneOf) return false;
  if (memory_.fetch_add(bytes) + bytes > kMemoryBytes) {
    memory_ -= bytes;
    return false;
  }
  ++sent_;
  return true;
}

void RequestHedger::give_back(int64_t bytes) {
  memory_ -= bytes;
}

}  // namespace millrace::s3
