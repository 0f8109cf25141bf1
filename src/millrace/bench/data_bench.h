// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures a loader and a tokenizer on a user's own data and settings: as fast as they go, and, for a training that
// takes so many tokens a second, how long it would wait. Functions block; thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/loader/options.h"

namespace millrace::bench {

struct LoaderBenchConfig {
  loader::LoaderOptions options;              // endless
  std::chrono::duration<double> seconds{10};  // of each part, behind the first batch
  double train_tokens_per_s = 0;              // of this rank; 0: the second part is left out
};

struct LoaderBenchResult {
  int64_t batches = 0, tokens = 0, read_bytes = 0, cache_hit_bytes = 0, cache_miss_bytes = 0;
  double first_batch_s = 0;                        // opening and the first batch
  double seconds = 0;                              // of the first part, which takes batches as fast as they come
  double read_s = 0, decode_s = 0, collate_s = 0;  // summed over threads
  int threads = 0;
  std::string limit;                 // "read", "decode" or "collate"
  std::optional<double> wait_share;  // of the second part: of its time, in next()

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};
// Errors: those of the loader, cancelled.
[[nodiscard]] Result<LoaderBenchResult> bench_loader(const LoaderBenchConfig& config, const std::stop_token& stop);

struct TokenizerBenchConfig {
  std::string json, name;  // of the tokenizer.json
  std::string text;        // to encode, cut at ends of lines
  int threads = 1;
  std::chrono::duration<double> seconds{5};
};
struct TokenizerBenchResult {
  int threads = 0;
  int64_t bytes = 0, tokens = 0;
  double seconds = 0;
  double bytes_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};
// Errors: invalid_argument (no tokenizer.json; text that is no UTF-8, or empty), those of encoding, cancelled.
[[nodiscard]] Result<TokenizerBenchResult> bench_tokenizer(const TokenizerBenchConfig& config,
                                                           const std::stop_token& stop);

}  // namespace millrace::bench
