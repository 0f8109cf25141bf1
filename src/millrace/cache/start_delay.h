// SPDX-License-Identifier: Apache-2.0
#pragma once

// Delays the first requests of the nodes of a large job. Thread-safe.

#include <cstdint>

#include "millrace/base/thread/sync.h"

namespace millrace::cache {

// Returns how long a node waits before its first request; 0 for node 0. The nodes of a job start together and first
// read below one prefix, often in the same shards. So they begin evenly one after another, at the rate at which a
// prefix of S3 answers. 64 nodes are spread over half a second, 4,096 over 30 s. S3 could not have answered them
// faster. REQUIRES: node >= 0.
Clock::duration start_delay(int64_t node);

}  // namespace millrace::cache
