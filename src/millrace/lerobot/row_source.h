// SPDX-License-Identifier: Apache-2.0
#pragma once

// Presents the rows of episodes as samples to the loader, so that its order, states, mixtures and ranks work for robot
// data too. An episode is a shard. A row is a sample with a single id, the row number. The loader orders the numbers,
// and the caller reads the rows with these numbers. No I/O.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/sample_source.h"

namespace millrace::lerobot {

inline constexpr std::string_view kRowField = "row.u32";  // the row number as raw bytes

struct RowsToOrder {
  std::string name;               // name of the dataset, for messages
  std::string facts;              // tells datasets with equal lengths apart
  std::vector<int64_t> episodes;  // episode numbers
  std::vector<int64_t> lengths;   // rows of each episode; row numbers run on from 0
};

// Errors: unsupported (2^32 rows or more), invalid_argument (no rows; not one length for each episode).
[[nodiscard]] Result<std::unique_ptr<order::SampleSource>> make_row_source(const RowsToOrder& rows);

}  // namespace millrace::lerobot
