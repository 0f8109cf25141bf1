// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file's time as seconds and nanoseconds. One 64-bit count of nanoseconds would overflow in 2262; file systems store
// later times. A plain value.

#include <chrono>
#include <compare>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

namespace millrace {

class FileTime {
 public:
  constexpr FileTime() = default;  // 1970
  // The time is `seconds` since 1970, UTC, plus `nanoseconds`, which are in [0, 1e9).
  constexpr FileTime(int64_t seconds, int32_t nanoseconds) : seconds_(seconds), nanoseconds_(nanoseconds) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a time of a clock is one of a file.
  template <class Duration>
  constexpr FileTime(std::chrono::sys_time<Duration> time)
      : seconds_(std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count()),
        nanoseconds_(static_cast<int32_t>(
            std::chrono::nanoseconds(time - std::chrono::floor<std::chrono::seconds>(time)).count())) {}
  explicit constexpr FileTime(const timespec& time)
      : seconds_(time.tv_sec), nanoseconds_(static_cast<int32_t>(time.tv_nsec)) {}

  constexpr auto operator<=>(const FileTime&) const = default;
  constexpr bool is_epoch() const { return *this == FileTime(); }

  constexpr int64_t seconds() const { return seconds_; }
  constexpr int32_t nanoseconds() const { return nanoseconds_; }
  constexpr timespec as_timespec() const { return {seconds_, nanoseconds_}; }
  // Returns the seconds since 1970, with the precision of a double.
  constexpr double as_seconds() const { return static_cast<double>(seconds_) + 1e-9 * nanoseconds_; }

  FileTime& operator+=(std::chrono::nanoseconds more);

  // Nanoseconds since 1970 as a decimal number of any length.
  std::string ns_text() const;
  // Reads ns_text(). Returns 1970 for any other text, and for a number that no FileTime holds.
  static FileTime of_ns_text(std::string_view text);
  // Nanoseconds since 1970, modulo 2^64. 64-bit formats can tell two times apart by this number, but cannot order
  // them.
  int64_t wrapped_ns() const;
  // Whether wrapped_ns() did not wrap.
  bool fits_64_bits() const;

 private:
  int64_t seconds_ = 0;
  int32_t nanoseconds_ = 0;
};

inline FileTime operator+(FileTime time, std::chrono::nanoseconds more) {
  return time += more;
}

}  // namespace millrace
