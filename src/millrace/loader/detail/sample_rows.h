// SPDX-License-Identifier: Apache-2.0
#pragma once

// From samples of any kind to the columns of a batch. Pure functions; thread-safe.

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
  // The spec of each value: of SampleFields, or, where all fields are taken, found by its extension.
  std::vector<std::pair<FieldSpec, Value>> found;  // where all are taken
  std::vector<std::optional<Value>> values;        // else: the value for each spec
  bool is_typed = false;                           // a row, which may have gaps
  int64_t bytes = 0;                               // size of all values
};

// `record` is what a block holds of a sample of `source`; values may point into it. Errors: corruption naming source,
// sample and field (it lacks one; those of decode_field).
[[nodiscard]] Result<DecodedSample> decode_sample(std::span<const std::byte> record, std::string_view source,
                                                  const SampleFields& fields);

// Memory for this many bytes, and what keeps it.
using TakeMemory = std::function<std::pair<std::byte*, std::shared_ptr<void>>(int64_t bytes)>;

// Lays the rows of a batch together; nullptr is a row of padding. Sets Batch::keys, columns and rows. Errors:
// invalid_argument (rows that cannot be stacked), corruption (samples with other fields).
[[nodiscard]] Status collate_samples(std::span<const DecodedSample* const> rows, const SampleFields& fields,
                                     const TakeMemory& take_memory, Batch& batch);

}  // namespace millrace::loader
