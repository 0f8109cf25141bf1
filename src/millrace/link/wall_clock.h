// SPDX-License-Identifier: Apache-2.0
#pragma once

// The time of day, which an administrator or NTP may set ahead or back while a link runs. Actions that do harm when
// they come too early (emptying the trash, releasing long unused files) also check the bucket's clock, or use
// earliest_now_s(). Time stamps use latest_now_s(), because a stamp that is too old would let its file be removed too
// early. Thread-safe. All times are in seconds since 1970, UTC.

#include <cstdint>

#include "millrace/storage/url.h"

namespace millrace::link {

double wall_now_s();
int64_t earliest_now_s();  // ignores a clock that was set ahead after this process began
int64_t latest_now_s();    // ignores a clock that was set back, or that shows less than not_before()

// Tells a time that has passed already, as an earlier process recorded it. Later calls with a smaller value change
// nothing.
void not_before(int64_t seconds);

// Returns the bucket's own time: writes an object, reads the time that the bucket gave it, and removes it. Blocks.
// Errors: those of writing; unsupported (its objects have no times).
[[nodiscard]] Result<int64_t> bucket_now_s(const Location& there);

// Pretends that the clock was set ahead by `seconds`, or back. For tests.
void set_clock_ahead_for_test(double seconds);

}  // namespace millrace::link
