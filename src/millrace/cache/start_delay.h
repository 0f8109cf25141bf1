// SPDX-License-Identifier: Apache-2.0
#pragma once

// When a node of a large job asks a server for the first time. Thread-safe.

#include <cstdint>

#include "millrace/base/thread/sync.h"

namespace millrace::cache {

// The nodes of a job start at once, and what they read first lies below one prefix, often in the same shards. So each
// node waits for its turn: the nodes follow each other evenly, as fast as a prefix of S3 answers what they
// ask for. 64 nodes are spread over half a second, 4,096 over 30 s, in which the server could not have answered them
// either. 0 for node 0. REQUIRES: node >= 0.
Clock::duration start_delay(int64_t node);

}  // namespace millrace::cache
