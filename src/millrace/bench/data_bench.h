// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures a loader and a tokenizer with the user's own data and settings: the highest speed, and how long a training
// that takes a given number of tokens per second would wait. Functions block; thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/loader/options.h"

namespace millrace::bench {

struct LoaderBenchConfig {
  loader::LoaderOptions options;              // of an endless loader
  std::chrono::duration<double> seconds{10};  // measured time of each part, after the first batch
  double train_tokens_per_s = 0;              // of this rank; 0: skip the second part
};

struct LoaderBenchResult {
  int64_t batches = 0, tokens = 0, read_bytes = 0, cache_hit_bytes = 0, cache_miss_bytes = 0;
  double first_batch_s = 0;                        // opening and the first batch
  double seconds = 0;                              // length of the first part, which takes batches at full speed
  double read_s = 0, decode_s = 0, collate_s = 0;  // summed over threads
  int threads = 0;
  std::string limit;                 // "read", "decode" or "collate"
  std::optional<double> wait_share;  // share of the second part's time spent in next()

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};
// Runs the measurement. Errors: those of the loader, cancelled.
[[nodiscard]] Result<LoaderBenchResult> bench_loader(const LoaderBenchConfig& config, const std::stop_token& stop);

struct TokenizerBenchConfig {
  std::string json, name;  // content and name of the tokenizer.json
  std::string text;        // the text to encode; cut at ends of lines
  int threads = 1;
  std::chrono::duration<double> seconds{5};
};
struct TokenizerBenchResult {
  int threads = 0;
  int64_t bytes = 0, tokens = 0;
  double seconds = 0;
  double bytes_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};
// Runs the measurement. Errors: invalid_argument (not a tokenizer.json; text that is empty or not UTF-8), those of
// encoding, cancelled.
[[nodiscard]] Result<TokenizerBenchResult> bench_tokenizer(const TokenizerBenchConfig& config,
                                                           const std::stop_token& stop);

}  // namespace millrace::bench
