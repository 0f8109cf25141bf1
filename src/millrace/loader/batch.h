// SPDX-License-Identifier: Apache-2.0
#pragma once

// A batch that a Loader returns. A value; copies share the memory.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/loader/collate.h"
#include "millrace/loader/fields.h"

namespace millrace::loader {

struct Batch {
  struct Array {
    std::string_view name;
    std::byte* data = nullptr;  // [rows, seq_len] of `type`, C-contiguous
  };
  std::vector<Array> arrays;  // consecutive in memory, array_stride() bytes apart
  int64_t space_bytes = 0;    // bytes of `memory` from the start of the first array
  // One field of the samples, with LoaderOptions::fields.
  struct Column {
    enum class Form {
      kArray,  // [rows, ...] of `dtype` at `data`
      kList,   // one item per row, in `items`
    };
    struct Item {
      Value::Form form = Value::Form::kNothing;  // kNothing: no such field, or padding
      std::string dtype;                         // dtype of an array, in NumPy's spelling
      std::vector<int64_t> shape;                // C order
      int64_t offset = 0, size = 0;              // offset from `data`
    };
    std::string name;
    Form form = Form::kArray;
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<int64_t> lengths;  // length of each row, when rows were padded
    std::vector<uint8_t> mask;     // with FieldSpec::with_mask: 1 for a row that has a number, 0 for a null or padding
    std::vector<Item> items;       // value of each row; kList only
    std::byte* data = nullptr;
    std::shared_ptr<void> memory;  // keeps `data` alive
  };
  std::vector<Column> columns;
  std::vector<std::string> keys;            // keys of the samples, with LoaderOptions::fields
  std::vector<std::string> sample_sources;  // shards of the samples, with SampleFields::with_sources
  // The place of a row's sample in the order. The sample that replaced a damaged one keeps its own place.
  struct RowPlace {
    int64_t source = 0;  // number of the dataset in a mixture
    uint64_t epoch = 0;  // epoch of the dataset's order
    int64_t lane = 0, block = 0, index = 0;
    auto operator<=>(const RowPlace&) const = default;
  };
  std::vector<RowPlace> places;  // place of each row, for Loader::reject; with fields and OnBad::kQuarantine
  int64_t rows = 0;
  int64_t seq_len = 0;
  IdType type = IdType::kInt64;
  uint64_t epoch = 0;             // in a mixture: the pass
  int64_t position = 0;           // number of the global batch in its epoch; in a mixture: the step of the pass
  int64_t next_position = 0;      // position after this batch; with `epoch`, the state after using this batch
  std::vector<int64_t> sources;   // in a mixture: number of each row's dataset, -1 for padding; else empty
  std::vector<uint8_t> row_mask;  // with LoaderOptions::fill_last: 1 for a row of the epoch, 0 for a filling row
  int64_t tokens = 0;             // without padding
  // With LoaderOptions::documents: the start of each document in the concatenated rows, and the end of the last
  // document. The padding of a row counts as a document. For attention kernels that take sequences of variable length.
  std::vector<int32_t> cu_seqlens;
  int32_t max_seqlen = 0;        // length of the longest document
  std::shared_ptr<void> memory;  // keeps `data` alive
};

}  // namespace millrace::loader
