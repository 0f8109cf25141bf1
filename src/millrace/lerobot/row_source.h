// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rows of episodes as samples for the loader, whose order, states, mixtures and ranks then hold for robot data too.
// An episode is a shard, and a row is a sample that holds one id, its number: the loader orders numbers, and the
// caller reads the rows that they stand for. No I/O.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/sample_source.h"

namespace millrace::lerobot {

inline constexpr std::string_view kRowField = "row.u32";  // the number, raw

struct RowsToOrder {
  std::string name;               // of the dataset, for messages
  std::string facts;              // what tells it from another dataset besides its lengths
  std::vector<int64_t> episodes;  // their numbers
  std::vector<int64_t> lengths;   // rows of each; their numbers follow each other from 0 on
};

// Errors: unsupported (2^32 rows or more), invalid_argument (no rows; not one length for each episode).
[[nodiscard]] Result<std::unique_ptr<order::SampleSource>> make_row_source(const RowsToOrder& rows);

}  // namespace millrace::lerobot
