// SPDX-License-Identifier: Apache-2.0
#pragma once

// Packs whole samples into rows of `seq_len` tokens. A sample that fits into a row is never cut. docs/format/order.md
// ("Best fit") defines the algorithm. Pure; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::order {

// The samples of a window in bins. A bin is one row, or all rows of a sample that is longer than a row. The last row
// of such a sample has room for other samples.
struct WindowBins {
  std::vector<uint32_t> samples;  // the window's samples, bin after bin, in their order in the rows
  std::vector<uint32_t> ends;     // end of each bin in `samples`
  int64_t rows = 0;               // rows of all bins together
};
// Packs the samples of a window. `lengths[i]` is the token count of sample i; samples without tokens are in no bin.
// REQUIRES: seq_len >= 1.
WindowBins best_fit(std::span<const uint32_t> lengths, int64_t seq_len);

// The order of a block's samples, and the ends of its rows.
struct BlockLayout {
  std::vector<uint32_t> samples;  // each sample once, numbered in the block window after window
  std::vector<int64_t> row_ends;  // token offsets; empty: each row but the last has seq_len tokens
};

}  // namespace millrace::order
