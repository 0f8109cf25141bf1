// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/start_delay.h"

namespace millrace::cache {

namespace {

// GET and HEAD requests a second and prefix: "Best practices design patterns: optimizing Amazon S3 performance", Amazon
// S3 User Guide.
constexpr double kPrefixRate = 5500;
// A node's requests for its first batch: the manifest, some 8 windows of as many shards, and their indexes
// (benchmarks/cache/storm.cpp counts them).
constexpr double kNodeRequests = 40;

}  // namespace

Clock::duration start_delay(int64_t node) {
  const std::chrono::duration<double> delay(static_cast<double>(node) * kNodeRequests / kPrefixRate);
  return std::chrono::duration_cast<Clock::duration>(delay);
}

}  // namespace millrace::cache
