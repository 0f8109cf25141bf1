// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/wall_clock.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>

#include "millrace/base/thread/sync.h"

namespace millrace::link {

namespace {

double since_1970_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Also while the machine sleeps.
double steady_s() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::atomic<double> ahead_s = 0;
std::atomic<int64_t> passed_s = 0;
const double began_s = since_1970_s() - steady_s();  // of the steady clock, in the time of day when this process began

int64_t whole_seconds(double seconds) {
  return static_cast<int64_t>(std::floor(seconds));
}

}  // namespace

double wall_now_s() {
  return since_1970_s() + ahead_s.load();
}

int64_t earliest_now_s() {
  return whole_seconds(std::min(wall_now_s(), began_s + steady_s()));
}

int64_t latest_now_s() {
  return std::max(whole_seconds(std::max(wall_now_s(), began_s + steady_s())), passed_s.load());
}

void not_before(int64_t seconds) {
  int64_t before = passed_s.load();
  while (before < seconds && !passed_s.compare_exchange_weak(before, seconds)) {
  }
}

Result<int64_t> bucket_now_s(const Location& there) {
  const std::string key = there.child(fmt::format(".millrace/clock-{}-{}", host_name(), ::getpid())).key;
  RETURN_IF_ERROR(write_object(*there.storage, key, "what time is it", {}, Durability::kVisible));
  const auto info = there.storage->stat(key);
  const Status removed = there.storage->remove({&key, 1});
  if (!info) return tl::unexpected<Error>(info.error());
  RETURN_IF_ERROR(removed);
  if (info->modified <= FileTime()) return fail(ErrorCode::kUnsupported, "{}: objects have no times", key);
  return info->modified.seconds();
}

void set_clock_ahead_for_test(double seconds) {
  ahead_s = seconds;
}

}  // namespace millrace::link
