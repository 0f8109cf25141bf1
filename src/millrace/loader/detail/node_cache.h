// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading through the cache of the node what lies elsewhere than on this node. Thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/shard_set.h"

namespace millrace::loader {

struct NodeCacheUse {
  std::string directory;    // empty: no cache, and locations are read as they are
  int64_t cap_bytes = 0;    // 0: half of the disk
  Clock::duration delay{};  // from now until this node first asks a server
  std::stop_token stop;     // ends that wait, and what is read
  Metrics& metrics;         // outlives what is opened
};
// Errors: those of NodeCache::of_process. Those of what is returned: cancelled.
[[nodiscard]] Result<ReadThrough> through_node_cache(const NodeCacheUse& use);

}  // namespace millrace::loader
