// SPDX-License-Identifier: Apache-2.0
#pragma once

// Estimates the output of a task from a sample before it runs, and compares the size of its shards with their text.
// Thread-safe.

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/prepare/detail/inputs.h"
#include "millrace/prepare/detail/samples.h"

namespace millrace::prepare {

// Reads and encodes about 4 MiB from the front of up to 16 inputs, and scales the result by the bytes of all inputs.
// Errors: those of a run for the documents that are read.
[[nodiscard]] Result<Estimate> estimate_task(std::span<const Input> inputs, const SampleFormat& format,
                                             std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                             const std::stop_token& stop);

// Sums over several documents.
struct SizeSeen {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;    // of the text as it was read
  int64_t sample_bytes = 0;  // of the samples in the shard
};
// Returns the flags that help if the shards are much larger than their text because documents are small; otherwise
// empty.
std::string size_advice(const SampleFormat& format, const SizeSeen& seen);

}  // namespace millrace::prepare
