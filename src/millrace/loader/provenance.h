// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which samples a batch is made of. A value.

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::loader {

// Tokens [begin, end) of a sample, in one row of a batch.
struct SamplePart {
  int64_t source = 0;  // number of its dataset in a mixture, else 0
  std::string shard;   // URL
  int64_t sample = 0;  // number in the shard, from 0
  int64_t begin = 0;
  int64_t end = 0;
  std::string replaces = {};  // what was wrong with the row that this one stands for; empty: it is in its own place
};
using RowParts = std::vector<SamplePart>;

}  // namespace millrace::loader
