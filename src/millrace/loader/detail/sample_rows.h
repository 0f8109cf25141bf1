// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns samples of any kind into the columns of a batch. Pure functions; thread-safe.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/batch.h"
#include "millrace/loader/fields.h"

namespace millrace::loader {

// A sample that was decoded.
struct DecodedSample {
  std::string key;
  std::string source;  // the shard, for messages
  // Values with their specs. One of the two is set: `found` when SampleFields has no specs, else `values`.
  std::vector<std::pair<FieldSpec, Value>> found;  // each field, with the spec of its extension
  std::vector<std::optional<Value>> values;        // the value for each spec
  bool is_typed = false;                           // a row of a RowReader, which may have gaps
  int64_t bytes = 0;                               // size of all values
};

// Decodes the record of a sample in a block; `source` is its shard. Values may point into `record`. Errors: corruption
// naming source, sample and field (a missing field; those of decode_field).
[[nodiscard]] Result<DecodedSample> decode_sample(std::span<const std::byte> record, std::string_view source,
                                                  const SampleFields& fields);

// Returns memory for `bytes` bytes, and the owner that keeps it alive.
using TakeMemory = std::function<std::pair<std::byte*, std::shared_ptr<void>>(int64_t bytes)>;

// Combines the rows of a batch; nullptr is a row of padding. Sets Batch::keys, columns and rows. Errors:
// invalid_argument (rows that cannot be stacked), corruption (samples with different fields).
[[nodiscard]] Status collate_samples(std::span<const DecodedSample* const> rows, const SampleFields& fields,
                                     const TakeMemory& take_memory, Batch& batch);

}  // namespace millrace::loader
