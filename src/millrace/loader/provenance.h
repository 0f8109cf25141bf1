// SPDX-License-Identifier: Apache-2.0
#pragma once

// The samples that a batch consists of. A value.

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::loader {

// Tokens [begin, end) of a sample, in one row of a batch.
struct SamplePart {
  int64_t source = 0;  // number of the dataset in a mixture, else 0
  std::string shard;   // URL
  int64_t sample = 0;  // number in the shard, from 0
  int64_t begin = 0;
  int64_t end = 0;
  std::string replaces = {};  // damage of the row that this row replaces; empty: it replaces none
};
using RowParts = std::vector<SamplePart>;

}  // namespace millrace::loader
