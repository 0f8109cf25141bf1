// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/file_time.h"

#include <fmt/format.h>

#include <limits>

namespace millrace {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr size_t kMostDigits = 28;  // of 2^63 seconds in nanoseconds

__extension__ using Wide = __int128;

Wide wide_ns(int64_t seconds, int32_t nanoseconds) {
  return Wide{seconds} * kNsPerSecond + nanoseconds;
}

}  // namespace

FileTime& FileTime::operator+=(std::chrono::nanoseconds more) {
  const int64_t sum = nanoseconds_ + more.count() % kNsPerSecond;  // of (-1e9, 2e9)
  const int64_t carried = sum < 0 ? -1 : sum / kNsPerSecond;
  seconds_ += more.count() / kNsPerSecond + carried;
  nanoseconds_ = static_cast<int32_t>(sum - carried * kNsPerSecond);
  return *this;
}

std::string FileTime::ns_text() const {
  return fmt::format("{}", wide_ns(seconds_, nanoseconds_));
}

FileTime FileTime::of_ns_text(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  if (text.empty() || text.size() > kMostDigits) return {};
  Wide ns = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return {};
    ns = ns * 10 + (c - '0');
  }
  if (is_negative) ns = -ns;
  Wide seconds = ns / kNsPerSecond;
  auto rest = static_cast<int64_t>(ns % kNsPerSecond);
  if (rest < 0) {
    rest += kNsPerSecond;
    --seconds;
  }
  using Limits = std::numeric_limits<int64_t>;
  if (seconds < Limits::min() || seconds > Limits::max()) return {};
  return {static_cast<int64_t>(seconds), static_cast<int32_t>(rest)};
}

int64_t FileTime::wrapped_ns() const {
  return static_cast<int64_t>(static_cast<uint64_t>(seconds_) * kNsPerSecond + static_cast<uint64_t>(nanoseconds_));
}

bool FileTime::fits_64_bits() const {
  return wide_ns(seconds_, nanoseconds_) == wrapped_ns();
}

}  // namespace millrace
