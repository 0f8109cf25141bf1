// SPDX-License-Identifier: Apache-2.0
#pragma once

// Packs a batch of token ids and its other parts into one piece of memory, so that one copy moves it to a device. Pure
// functions; thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "millrace/loader/batch.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

struct PackedBatch {
  // An array in C order. `dtype` is "int32", "int64" or "bool", as in NumPy. `offset` is a multiple of
  // BatchRing::kAlignment.
  struct Field {
    std::string_view name;
    std::string_view dtype;
    std::vector<int64_t> shape;
    int64_t offset = 0;  // offset from `data`
    bool operator==(const Field&) const = default;
  };
  std::vector<Field> fields;
  std::byte* data = nullptr;
  int64_t bytes = 0;             // a multiple of BatchRing::kAlignment
  std::shared_ptr<void> memory;  // keeps `data` alive
};

// The parts of a batch to include besides its arrays.
struct PackedFields {
  bool sources = false;  // Batch::sources
  bool state = false;    // Batch::epoch and Batch::next_position
};

// Returns the distance in bytes between consecutive arrays of a batch of `rows` rows.
int64_t array_stride(const LoaderOptions& options, int64_t rows);
// Returns the most bytes that a packed batch of `rows` rows can take.
int64_t packed_bytes(const LoaderOptions& options, int64_t rows);

// Puts the parts that a batch carries after its arrays, if its memory has room for them. Otherwise puts arrays and
// parts into new memory.
PackedBatch pack_batch(Batch batch, const LoaderOptions& options, const PackedFields& wanted);

}  // namespace millrace::loader
