// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads remote data through the cache of this node. Thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/shard_set.h"

namespace millrace::loader {

struct NodeCacheUse {
  std::string directory;    // empty: no cache; locations are read directly
  int64_t cap_bytes = 0;    // 0: half of the disk
  Clock::duration delay{};  // time from now until this node first asks a server
  std::stop_token stop;     // ends that wait, and later reads
  Metrics& metrics;         // must outlive all that is opened
};
// Makes a ReadThrough that puts the cache in front of remote locations. Errors: those of NodeCache::of_process. Error
// of the returned function: cancelled.
[[nodiscard]] Result<ReadThrough> through_node_cache(const NodeCacheUse& use);

}  // namespace millrace::loader
