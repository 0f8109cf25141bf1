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
  std::vector<Array> arrays;  // one behind the other in memory, array_stride() bytes apart
  int64_t space_bytes = 0;    // size of `memory` from the first array on
  // One field of samples of any kind (LoaderOptions::fields).
  struct Column {
    enum class Form {
      kArray,  // [rows, ...] of `dtype` at `data`
      kList,   // one by one
    };
    struct Item {
      Value::Form form = Value::Form::kNothing;  // the sample has no such field, or the row is padding
      std::string dtype;                         // dtype of an array, in NumPy's spelling
      std::vector<int64_t> shape;                // C order
      int64_t offset = 0, size = 0;              // at `data`
    };
    std::string name;
    Form form = Form::kArray;
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<int64_t> lengths;  // length of each row, when rows were padded
    std::vector<Item> items;       // value of each row, unless the column is an array
    std::byte* data = nullptr;
    std::shared_ptr<void> memory;  // keeps `data` alive
  };
  std::vector<Column> columns;
  std::vector<std::string> keys;            // keys of the samples, with LoaderOptions::fields
  std::vector<std::string> sample_sources;  // their shards, with SampleFields::with_sources
  // The place of a row's sample in the order. A replacement has its own place.
  struct RowPlace {
    int64_t source = 0;  // the number of the dataset in a mixture
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
  int64_t next_position = 0;      // the one after it; with `epoch`, the state of a training that has used this batch
  std::vector<int64_t> sources;   // in a mixture: the number of each row's dataset, -1 for padding; else empty
  std::vector<uint8_t> row_mask;  // with LoaderOptions::fill_last: 1 for a row of the epoch, 0 for one that fills up
  int64_t tokens = 0;             // real ones, without padding
  // With LoaderOptions::documents: the start of each document in the rows laid end to end, and the end of the last one.
  // The padding of a row counts as one more document. For attention of variable length.
  std::vector<int32_t> cu_seqlens;
  int32_t max_seqlen = 0;        // the longest of them
  std::shared_ptr<void> memory;  // keeps `data` alive
};

}  // namespace millrace::loader
