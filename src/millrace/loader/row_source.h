// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes a SampleSource of rows that a RowReader reads (from a table or a Python object). The rows of a block stay in
// memory from the planning of the block until they are decoded into it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/activities.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct Row {
  std::string key;
  std::vector<std::pair<std::string, std::string>> fields;  // name and value (typed_value.h)
  std::optional<Error> error;                               // error of this row alone
};

// Thread-safe: rows are read by the workers of several loaders at once.
class RowReader {
 public:
  struct RowShard {
    std::string name;
    int64_t rows = 0;
  };
  struct Facts {
    std::string name;      // named in messages
    std::string identity;  // see SampleSource::identity()
    std::vector<RowShard> shards;
    int64_t bytes = 0;        // approximate size of all rows; 0: not known
    int64_t window_rows = 0;  // rows that are best read together; 0: chosen from their size
  };

  virtual ~RowReader() = default;
  // Reads the rows [begin, end) of a shard. An error (corruption, not_found, ...) concerns all these rows.
  [[nodiscard]] virtual Result<std::vector<Row>> read(int64_t shard, int64_t begin, int64_t end) = 0;
};

// Makes the source. `metrics` (read_bytes, read_seconds) and `activities` (may be null) must outlive it.
std::unique_ptr<order::SampleSource> make_row_source(RowReader::Facts facts, std::unique_ptr<RowReader> reader,
                                                     Metrics& metrics, Activities* activities);

}  // namespace millrace::loader
