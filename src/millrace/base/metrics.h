// SPDX-License-Identifier: Apache-2.0
#pragma once

// The table of all metrics; docs/metrics.md, the CLI and Python read it. A Metrics object holds one value per row.
// Each loader, checkpointer and prepare run owns a Metrics object; the process owns one for the values that they
// share. Thread-safe.

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/base/thread/sync.h"

namespace millrace {

enum class Metric : int {
  kReadBytes,
  kReadSeconds,
  kWriteBytes,
  kWriteSeconds,
  kDecodeSeconds,
  kCollateSeconds,
  kEncodeSeconds,
  kSamples,
  kTokens,
  kTruncatedTokens,
  kBatches,
  kBatchCopies,
  kWaitSeconds,
  kStallSeconds,
  kSaves,
  kInvalidUtf8,
  kRejected,
  kDuplicates,
  kCacheHitBytes,
  kCacheCheckedBytes,
  kCacheMissBytes,
  kCacheDamaged,
  kRequests,
  kRetries,
  kSlowDowns,
  kSentBytes,
  kReceivedBytes,
  kCount,
};

struct MetricDef {
  std::string_view name;       // "read_bytes"
  std::string_view unit;       // "bytes", "seconds", "1"
  std::string_view stability;  // "stable" or "experimental"
  std::string_view help;
};

// The table, indexed by Metric.
std::span<const MetricDef> metric_defs();

// The value of each row in its unit. Seconds are stored as whole nanoseconds.
class Metrics {
 public:
  void add(Metric metric, int64_t amount) { at(metric).fetch_add(amount, std::memory_order_relaxed); }
  void add_seconds(Metric metric, Clock::duration time);
  int64_t count(Metric metric) const { return at(metric).load(std::memory_order_relaxed); }
  double seconds(Metric metric) const { return static_cast<double>(count(metric)) * 1e-9; }
  // The value in the unit of its row.
  double value(Metric metric) const;

 private:
  std::atomic<int64_t>& at(Metric metric) { return values_[static_cast<size_t>(metric)]; }
  const std::atomic<int64_t>& at(Metric metric) const { return values_[static_cast<size_t>(metric)]; }
  std::array<std::atomic<int64_t>, static_cast<size_t>(Metric::kCount)> values_{};
};

// The counts of this process's requests to servers: the rows from kRequests on. A forked child continues from its
// parent's values.
Metrics& process_metrics();

// Adds the time from construction to destruction to one metric.
class MetricTimer {
 public:
  MetricTimer(Metrics& metrics, Metric metric) : metrics_(metrics), metric_(metric) {}
  ~MetricTimer() { metrics_.add_seconds(metric_, Clock::now() - start_); }
  MetricTimer(const MetricTimer&) = delete;
  MetricTimer& operator=(const MetricTimer&) = delete;

 private:
  Metrics& metrics_;
  Metric metric_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace millrace
