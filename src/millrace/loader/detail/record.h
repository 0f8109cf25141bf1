// SPDX-License-Identifier: Apache-2.0
#pragma once

// A sample of any kind as it lies in a block: its key and the fields that are wanted, as the shard has them; and the
// decoder that puts it there. Thread-safe.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/detail/sample_decoder.h"
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

// Writes what `fields` takes of a sample, in as many bytes as SamplePlan::bytes says. decode() errors: internal (these
// are too few: the source has counted wrongly). `fields` must outlive it.
std::unique_ptr<SampleDecoder> make_record_decoder(const SampleFields& fields);
// REQUIRES: that decoder wrote it. Views into `bytes`.
Record read_record(std::span<const std::byte> bytes);

}  // namespace millrace::loader
