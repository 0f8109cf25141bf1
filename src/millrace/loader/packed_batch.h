// SPDX-License-Identifier: Apache-2.0
#pragma once

// A batch of token ids with all that belongs to it in one piece of memory, so that one copy moves it to a device. Pure
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
  // C order, of dtype "int32", "int64" or "bool" as NumPy has them, at a multiple of BatchRing::kAlignment.
  struct Field {
    std::string_view name;
    std::string_view dtype;
    std::vector<int64_t> shape;
    int64_t offset = 0;  // at `data`
    bool operator==(const Field&) const = default;
  };
  std::vector<Field> fields;
  std::byte* data = nullptr;
  int64_t bytes = 0;             // a multiple of BatchRing::kAlignment
  std::shared_ptr<void> memory;  // keeps `data` alive
};

// Parts of a batch that are wanted besides its arrays.
struct PackedFields {
  bool sources = false;  // Batch::sources
  bool state = false;    // Batch::epoch and Batch::next_position
};

// The bytes from one array of a batch of `rows` rows to the next.
int64_t array_stride(const LoaderOptions& options, int64_t rows);
// The most bytes that a packed batch of `rows` rows takes.
int64_t packed_bytes(const LoaderOptions& options, int64_t rows);

// Puts the parts that a batch carries after its arrays, if its memory has room for them. Otherwise puts arrays and
// parts into new memory.
PackedBatch pack_batch(Batch batch, const LoaderOptions& options, const PackedFields& wanted);

}  // namespace millrace::loader
