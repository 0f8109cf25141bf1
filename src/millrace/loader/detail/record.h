// SPDX-License-Identifier: Apache-2.0
#pragma once

// The record of a sample of any kind in a block: its key and the wanted fields, still encoded as in the shard. Also
// the decoder that writes such records. Thread-safe.

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
    size_t spec = 0;  // index in SampleFields::specs; without specs, index in the sample
    std::string_view name;
    std::span<const std::byte> data;
    bool is_typed = false;
  };
  std::string_view key;
  std::vector<Field> fields;
};

// Makes a decoder that writes the fields of a sample that `fields` selects, in as many bytes as SamplePlan::bytes
// says. Error of decode(): internal (SamplePlan::bytes is too small, because the source counted wrongly). `fields`
// must outlive the decoder.
std::unique_ptr<SampleDecoder> make_record_decoder(const SampleFields& fields);
// Reads a record. It points into `bytes`. REQUIRES: the decoder above wrote `bytes`.
Record read_record(std::span<const std::byte> bytes);

}  // namespace millrace::loader
