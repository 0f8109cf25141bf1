// SPDX-License-Identifier: Apache-2.0
#pragma once

// Damaged units that were replaced, and damaged shards that are in the order only in part. Values; thread-safe.

#include <cstdint>
#include <string>

namespace millrace::order {

// A damaged unit, by its place in the order (the same at every world size), with the reason.
struct QuarantinedUnit {
  int64_t source = 0;  // the number of the dataset in a mixture
  uint64_t epoch = 0;  // epoch of the dataset's order
  int64_t lane = 0, block = 0, index = 0;
  int64_t attempts = 1;  // replacements tried; EpochOrder::replacement(place, attempts - 1) was read
  std::string reason;    // names the shard, and the sample if known
  bool operator==(const QuarantinedUnit&) const = default;
};

// A damaged shard without an index: only its samples before the damage are part of the order.
struct DamagedShard {
  int64_t source = 0;   // the number of the dataset in a mixture
  std::string shard;    // URL of the shard
  int64_t samples = 0;  // samples before the damage
  std::string reason;   // names the shard and the place
  bool operator==(const DamagedShard&) const = default;
};

}  // namespace millrace::order
