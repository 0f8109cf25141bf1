// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a dataset is to the loader: shards of samples that can be counted and read by window. Shard folders implement it
// in loader/, robot datasets in their own room. Thread-safe; reads may run on many threads at once.

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/order.h"

namespace millrace::order {

// One named part of a sample, as raw bytes ("token_ids.npy", "text.txt").
struct Field {
  std::string_view name;
  std::span<const std::byte> data;
};
// Valid during the visit only.
struct Sample {
  std::string_view key;
  std::span<const Field> fields;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // For messages: the URL.
  virtual std::string_view name() const = 0;
  // One shard of it, for messages.
  virtual std::string shard_name(int64_t shard) const {
    static_cast<void>(shard);
    return std::string(name());
  }
  // Equal for equal samples in equal canonical order; part of the loader's state.
  virtual std::string_view identity() const = 0;

  // Samples of each shard, in canonical order.
  virtual std::span<const int64_t> shard_samples() const = 0;

  // Tokens of all samples. Errors: unsupported (lengths are unknown: the samples hold no token ids).
  [[nodiscard]] virtual Result<int64_t> total_tokens() = 0;

  // Tokens of every `window_samples` samples of a shard, the last window may be shorter. Reads the lengths of all its
  // samples. Errors: unsupported, those of reading the index. REQUIRES: `tokens` has an element a window.
  [[nodiscard]] virtual Status window_tokens(int64_t shard, int64_t window_samples, std::span<int64_t> tokens) = 0;

  // Tokens of each sample of `windows`, laid end to end. What it costs depends on these windows alone.
  // Errors: unsupported, those of reading the index.
  [[nodiscard]] virtual Result<std::vector<uint32_t>> lengths(std::span<const Window> windows) = 0;

  // Reads samples [first, first + count) of a shard and visits each, in order; `index` counts from 0. A visit that
  // answers an error ends the read with that error. Bytes are verified where a hash is known.
  // Errors: corruption naming shard, sample and offset; not_found, unavailable, cancelled.
  [[nodiscard]] virtual Status read(int64_t shard, int64_t first, int64_t count, std::stop_token stop,
                                    const std::function<Status(int64_t index, const Sample& sample)>& visit) = 0;
};

}  // namespace millrace::order
