// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures the file operations of training: streams, random reads, small files, a checkpoint's burst, metadata, and
// reads while others write. Each node runs one process with several threads, which are the ranks. Bypasses the page
// cache (O_DIRECT) if the file system can; otherwise drops pages and reports the share that stayed cached.
// Thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/bench/meeting.h"

namespace millrace::bench {

struct StorageConfig {
  std::vector<std::string> mounts;   // as the user named them
  std::vector<std::string> folders;  // a working folder on each mount, visible to all nodes
  bool training = true, checkpoint = true, metadata = true;
  bool sweep = false;                             // varies the number of requests at once and the file size
  int ranks = 4;                                  // threads per node
  int depth = 32;                                 // random reads at once per node
  int64_t file_bytes = int64_t{256} << 20;        // size of each rank's file
  int64_t block_bytes = int64_t{1} << 20;         // size of one request of a stream
  int64_t small_bytes = int64_t{128} << 10;       // size of a small file
  int64_t files = 1000;                           // small files per rank
  int64_t limit_bytes = int64_t{16} << 30;        // most space on one file system, all nodes together
  std::chrono::duration<double> test_seconds{5};  // the longest time of a round
  int rounds = 3;                                 // measured rounds of each test, after one warm-up round
};

// Returns "64 KiB" or "16 MiB", for sizes that are a whole number of KiB or MiB.
std::string size_name(int64_t bytes);

// Returns the most bytes that the tests keep on one mount at a time.
int64_t bytes_needed(const StorageConfig& config, int nodes);
// Checks the free space. Errors: resource_exhausted (more than limit_bytes, or than half of the free space), those of
// statvfs.
[[nodiscard]] Status check_space(const StorageConfig& config, int nodes);

// One test on one mount. A rate is the work of all ranks divided by the time from the first start to the last end, so
// the slowest rank counts.
struct TestResult {
  std::string mount, test, unit;  // unit: "B/s", or "files/s" and the like
  // The swept quantity. "depth": `place` is a node's concurrent requests. "size": `place` is a file's bytes. "": no
  // sweep.
  std::string sweep;
  int64_t place = 0;
  int nodes = 1, ranks = 1;   // `ranks`: on all nodes
  int64_t request_bytes = 0;  // of one read or write; 0: none
  std::vector<double> rates;  // one per round
  double median() const, least() const, most() const;
  double slowest_share = 1;     // the slowest rank's rate against the fastest's, median of the rounds
  double start_spread_s = 0;    // first to last start of ranks, the worst round
  double p50_s = 0, p99_s = 0;  // of single requests; 0: not measured
  double cached = -1;           // share of the data found in the page cache; -1: bypassed, or nothing was read
  bool own_data = false;        // read by the node that wrote it

  nlohmann::ordered_json to_json() const;  // an object of type "bench_storage"
};

// Runs the tests as one node of a meeting. Node 0 calls `take` with each result; other nodes never call it. Errors:
// those of reading and writing (no space, no permission), of the meeting, cancelled.
[[nodiscard]] Status run_storage_bench(const StorageConfig& config, Meeting& meeting,
                                       const std::function<void(const TestResult&)>& take, const std::stop_token& stop);
TestResult result_of(const nlohmann::ordered_json& object);

// A conclusion for training from the results. `formula` says how `value` was computed.
struct Meaning {
  std::string mount, what, value, formula;
};
struct MeaningOptions {
  double checkpoint_bytes = 0;
  int64_t gpus = 8;
};
std::vector<Meaning> meanings(const std::vector<TestResult>& results, const MeaningOptions& options);

}  // namespace millrace::bench
