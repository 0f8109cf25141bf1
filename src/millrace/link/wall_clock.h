// SPDX-License-Identifier: Apache-2.0
#pragma once

// The time of day, which an administrator or NTP may set ahead or back while a link runs. What would do harm too early
// (removing what lies in the trash, releasing what is long unused) asks the bucket's clock, too, or earliest_now_s();
// what is stamped, and would go too early if the stamp were too old, asks latest_now_s(). Thread-safe. All in seconds
// since 1970, UTC.

#include <cstdint>

#include "millrace/storage/url.h"

namespace millrace::link {

double wall_now_s();
int64_t earliest_now_s();  // a clock that was set ahead since this process began does not count
int64_t latest_now_s();    // nor does one that was set back, or shows less than not_before()

// A time that has passed already, as an earlier process wrote it down. Later calls with less change nothing.
void not_before(int64_t seconds);

// The bucket's own clock, by the time that it gives an object which is written for this and removed. Blocks. Errors:
// those of writing; unsupported (its objects have no times).
[[nodiscard]] Result<int64_t> bucket_now_s(const Location& there);

// Tests: as if somebody had set the clock so far ahead, or back, of what it would show.
void set_clock_ahead_for_test(double seconds);

}  // namespace millrace::link
