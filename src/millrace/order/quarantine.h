// SPDX-License-Identifier: Apache-2.0
#pragma once

// Units that were damaged and replaced, and shards of which a part is left out. Values; thread-safe.

#include <cstdint>
#include <string>

namespace millrace::order {

// A unit of an order by its place there, which is the same at every world size, and what was wrong with it.
struct QuarantinedUnit {
  int64_t source = 0;  // the number of the dataset in a mixture
  uint64_t epoch = 0;  // epoch of the dataset's order
  int64_t lane = 0, block = 0, index = 0;
  int64_t attempts = 1;  // at another unit: EpochOrder::replacement(place, attempts - 1) was read
  std::string reason;    // names the shard, and the sample where it is known
  bool operator==(const QuarantinedUnit&) const = default;
};

// A shard that tells its samples by itself (it has no index), damaged: only those before the damage are part of the
// order.
struct DamagedShard {
  int64_t source = 0;   // the number of the dataset in a mixture
  std::string shard;    // its URL
  int64_t samples = 0;  // samples before the damage
  std::string reason;   // names the shard and the place
  bool operator==(const DamagedShard&) const = default;
};

}  // namespace millrace::order
