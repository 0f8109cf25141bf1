// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Storage whose reads go through the cache of the node. Writes, listings and all other calls go to the inner
// storage. Thread-safe; in a forked child as Storage.

#include <memory>
#include <stop_token>

#include "millrace/base/metrics.h"
#include "millrace/cache/node_cache.h"
#include "millrace/storage/storage.h"
#include "millrace/storage/url.h"

namespace millrace::cache {

struct CachedStorageOptions {
  std::stop_token stop;        // ends waiting for other processes
  Metrics* metrics = nullptr;  // outlives the storage and its readers; may be null
};

// Makes a storage that reads `inner` through `cache`. Objects without a version are not cached.
std::shared_ptr<Storage> make_cached_storage(std::shared_ptr<Storage> inner, std::shared_ptr<NodeCache> cache,
                                             const CachedStorageOptions& options = {});

// Whether the object at `location` is on a disk or in the memory of this machine, so that a cache would gain nothing.
bool lies_on_this_node(const Location& location);

}  // namespace millrace::cache
