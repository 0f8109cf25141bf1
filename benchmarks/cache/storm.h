// SPDX-License-Identifier: Apache-2.0
#pragma once

// A simulation of many nodes that start to train on the shards below one prefix of a bucket: what each rank reads for
// its first batch comes from the order of samples (order/order.h), the first moment of a node from cache/start_delay.h,
// retries from s3/client. Discrete events; simulated time. A pure function of its arguments, but for the chance in
// retries. Not thread-safe.

#include <cstdint>
#include <vector>

namespace millrace::storm {

struct Setting {
  int64_t nodes = 8;
  int64_t node_ranks = 8;
  int64_t shards = 500;
  int64_t shard_samples = 20'000;
  int64_t sample_bytes = 6'000;
  int64_t rank_batch = 4;  // samples
  // With: the ranks of a node share a cache, and nodes take turns. Without: each rank lists the prefix, opens and reads
  // for itself, at once.
  bool with_cache = true;
};

struct Outcome {
  int64_t wanted = 0;                      // requests that were answered
  int64_t refused = 0;                     // "slow down"
  int64_t lists = 0;                       // of the wanted
  int64_t bytes = 0;                       // received
  double first_s = 0;                      // until the first node has its first batches
  double all_s = 0;                        // until all have
  std::vector<int64_t> requests_a_second;  // answered and refused, by second
  std::vector<int64_t> bytes_a_second;
};

Outcome simulate(const Setting& setting);

}  // namespace millrace::storm
