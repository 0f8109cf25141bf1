// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures checkpoints with the user's own folders and settings: how long a save stops training, when it is durable in
// each tier, and how fast it loads. Blocks; thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace::bench {

struct CheckpointBenchConfig {
  std::vector<std::string> folders;  // existing local folders, the nearest first; the last is the root
  // The tensors of this rank; their data and boxes are ignored. Empty: an AdamW state of `bytes`.
  std::vector<checkpoint::StoredTensor> tensors;
  int64_t bytes = 1'000'000'000;
  int rounds = 3;  // after the first one
  int threads = 0;
  bool reserve = false;  // reserve memory before the first save
};

struct CheckpointBenchResult {
  int64_t bytes = 0, tensors = 0;
  double first_stop_s = 0, stop_s = 0;  // time in save(): the first one; median of the others
  std::vector<double> durable_s;        // by folder, from the call of save(): medians
  double cpu_s = 0;                     // processor time of one save, all threads: median
  double copy_s = 0;                    // one memcpy of `bytes` into touched memory: median
  double load_s = 0;                    // loading into touched memory: median over all folders
};
// Runs the measurement. Makes a folder in each of `folders` and removes it. Compares the loaded data with the saved
// data. Errors: those of saving and loading, invalid_argument (no folder, bytes), cancelled.
[[nodiscard]] Result<CheckpointBenchResult> bench_checkpoint(const CheckpointBenchConfig& config,
                                                             const std::stop_token& stop);

}  // namespace millrace::bench
