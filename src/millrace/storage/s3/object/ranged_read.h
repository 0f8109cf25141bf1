// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a range by GETs of pieces. Each piece is checked, retried, and requested a second time when it lags.
// Thread-safe.

#include "millrace/storage/s3/client/bucket.h"

namespace millrace::s3 {

// Starts a read. Calls `done` once, on a thread of the transport, when no request writes into `out` any more.
// REQUIRES: out is not empty.
void start_ranges(Service& service, const std::shared_ptr<const PinnedObject>& object, int64_t offset,
                  std::span<std::byte> out, const std::stop_token& stop, Clock::time_point deadline, OnDone done);

}  // namespace millrace::s3
