// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the samples of a source into typed rows in a Block: token ids with their masks, or records of the wanted
// fields. Immutable; many threads may decode in parallel.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/options.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

class SampleDecoder {
 public:
  virtual ~SampleDecoder() = default;

  // The unit of which rows consist. A block stores rows without gaps.
  struct Item {
    int64_t bytes = 0;
    bool has_bit = false;  // the decoder also writes one bit per item
  };
  virtual Item item() const = 0;
  // Returns the number of items to reserve in a block for each sample of `plan`. Errors: unsupported (a sample that is
  // too large).
  [[nodiscard]] virtual Result<std::vector<uint32_t>> count_items(const order::SamplePlan& plan) const = 0;

  // The place of one sample's row.
  struct Slot {
    std::span<std::byte> data;  // aligned to an item
    uint8_t* bits = nullptr;    // lowest bit of a byte first; null without Item::has_bit
    bool is_masked = false;     // set by decode(): some bit may be 0
  };
  // Fills `slot`. `name` is the name of the run, for messages. `scratch` is reused for all samples, to avoid
  // allocations. Errors: corruption, invalid_argument, internal; they name the sample.
  [[nodiscard]] virtual Status decode(const order::Sample& sample, std::string_view name, Slot& slot,
                                      std::vector<uint32_t>& scratch) const = 0;
};

// Makes the decoder that `options` ask for. `options` must outlive it.
std::unique_ptr<SampleDecoder> make_decoder(const LoaderOptions& options, const order::SampleSource& source);

}  // namespace millrace::loader
