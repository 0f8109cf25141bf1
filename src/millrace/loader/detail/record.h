// SPDX-License-Identifier: Apache-2.0
#pragma once

// A sample of any kind as it lies in a block: its key and the fields that are wanted, as the shard has them. Pure
// functions; thread-safe.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/fields.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct Record {
  struct Field {
    size_t spec = 0;  // number in SampleFields; where all are taken, the place in the sample
    std::string_view name;
    std::span<const std::byte> data;
    bool is_typed = false;
  };
  std::string_view key;
  std::vector<Field> fields;
};

// Writes what `fields` takes of the sample. Errors: internal (`out` is too small: the source has counted wrongly).
[[nodiscard]] Status write_record(const order::Sample& sample, const SampleFields& fields, std::span<std::byte> out,
                                  std::string_view source);
// REQUIRES: write_record wrote it. Views into `bytes`.
Record read_record(std::span<const std::byte> bytes);

}  // namespace millrace::loader
