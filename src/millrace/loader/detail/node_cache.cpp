// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/node_cache.h"

#include <utility>

#include "millrace/cache/cached_storage.h"

namespace millrace::loader {

Result<ReadThrough> through_node_cache(const NodeCacheUse& use) {
  if (use.directory.empty()) return ReadThrough();
  ASSIGN_OR_RETURN(auto cache,
                   cache::NodeCache::of_process({.directory = use.directory, .cap_bytes = use.cap_bytes}, use.stop));
  const cache::CachedStorageOptions cached{.stop = use.stop, .metrics = &use.metrics};
  return [cache, cached, turn = Clock::now() + use.delay](Location location) -> Result<Location> {
    if (cache::lies_on_this_node(location)) return location;
    if (!sleep_until(turn, cached.stop)) return fail(ErrorCode::kCancelled, "the loader is closed");
    location.storage = cache::make_cached_storage(std::move(location.storage), cache, cached);
    return location;
  };
}

}  // namespace millrace::loader
