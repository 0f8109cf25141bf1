// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/metrics.h"

namespace millrace {

namespace {

constexpr std::array<MetricDef, static_cast<size_t>(Metric::kCount)> kDefs{{
    {"read_bytes", "bytes", "stable", "Bytes read from storage."},
    {"read_seconds", "seconds", "stable",
     "Time from asking storage for bytes until they were there, summed over reads."},
    {"write_bytes", "bytes", "stable", "Bytes written to storage."},
    {"write_seconds", "seconds", "stable", "Time threads spent writing to storage, summed over threads."},
    {"decode_seconds", "seconds", "stable", "Time threads spent verifying and decoding samples."},
    {"collate_seconds", "seconds", "stable", "Time threads spent filling batches."},
    {"encode_seconds", "seconds", "stable", "Time threads spent tokenising and formatting samples."},
    {"samples", "1", "stable", "Samples (documents) read or written."},
    {"tokens", "1", "stable", "Token ids read or written."},
    {"truncated_tokens", "1", "stable", "Token ids left out because their sample is longer than seq_len (pad)."},
    {"batches", "1", "stable", "Batches handed to the training loop."},
    {"batch_copies", "1", "experimental", "Batches copied out of the pool because the user kept more than it expects."},
    {"wait_seconds", "seconds", "stable", "Time the training loop waited in next() for a batch."},
    {"stall_seconds", "seconds", "stable",
     "Time save() kept the training loop: waiting for the last save and copying."},
    {"saves", "1", "stable", "Checkpoints whose snapshot was taken."},
    {"invalid_utf8", "1", "stable", "Ill-formed UTF-8 sequences replaced by U+FFFD."},
    {"rejected", "1", "stable", "Documents left out because of an error, each with a line in a ledger."},
    {"duplicates", "1", "stable", "Documents left out because their text came before."},
    {"cache_hit_bytes", "bytes", "stable", "Bytes read from the cache of the node."},
    {"cache_checked_bytes", "bytes", "stable", "Of cache_hit_bytes, those that were held against their hashes then."},
    {"cache_miss_bytes", "bytes", "stable", "Bytes that this process downloaded for the cache of the node."},
    {"cache_damaged", "1", "stable", "Blocks of the cache that were damaged on the disk and downloaded again."},
    {"requests", "1", "stable", "Requests to S3 and HTTP servers of the whole process, each try counted."},
    {"retries", "1", "stable", "Requests that were sent again (process)."},
    {"slow_downs", "1", "stable", "Answers that said the server has too much to do (process)."},
    {"sent_bytes", "bytes", "stable", "Bytes of bodies sent to S3, each counted once however often it went (process)."},
    {"received_bytes", "bytes", "stable", "Bytes of bodies that came from S3 and HTTP servers (process)."},
}};

}  // namespace

std::span<const MetricDef> metric_defs() {
  return kDefs;
}

void Metrics::add_seconds(Metric metric, Clock::duration time) {
  add(metric, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

Metrics& process_metrics() {
  static auto& metrics = *new Metrics;  // never destroyed: requests may be under way when the process ends
  return metrics;
}

double Metrics::value(Metric metric) const {
  const bool is_time = kDefs[static_cast<size_t>(metric)].unit == "seconds";
  return is_time ? seconds(metric) : static_cast<double>(count(metric));
}

}  // namespace millrace
