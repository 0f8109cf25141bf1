// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the samples of a source into typed rows in a Block: token ids with their masks, or records of the fields that
// are read. Constant once it is made; many threads may decode at once.

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

  // The unit of a row. A block lays rows end to end without gaps.
  struct Item {
    int64_t bytes = 0;
    bool has_bit = false;  // each item has a bit beside it, which the decoder writes
  };
  virtual Item item() const = 0;
  // Items that a block keeps free for each sample of `plan`. Errors: unsupported (a sample that is too large).
  [[nodiscard]] virtual Result<std::vector<uint32_t>> count_items(const order::SamplePlan& plan) const = 0;

  // Where the row of one sample goes.
  struct Slot {
    std::span<std::byte> data;  // aligned to an item
    uint8_t* bits = nullptr;    // the lowest of a byte first; null without Item::has_bit
    bool is_masked = false;     // set by decode(): a bit may be 0
  };
  // Fills `slot`. `name` is that of the run, for messages. `scratch` is kept from sample to sample, to spare
  // allocations. Errors: corruption, invalid_argument, internal; they name the sample.
  [[nodiscard]] virtual Status decode(const order::Sample& sample, std::string_view name, Slot& slot,
                                      std::vector<uint32_t>& scratch) const = 0;
};

// The decoder that `options` ask for. `options` must outlive it.
std::unique_ptr<SampleDecoder> make_decoder(const LoaderOptions& options, const order::SampleSource& source);

}  // namespace millrace::loader
