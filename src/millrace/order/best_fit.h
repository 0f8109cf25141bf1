// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whole samples into rows of `seq_len` tokens, so that none is cut that fits into a row. docs/format/order.md ("Best
// fit") defines it. Pure; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::order {

// A window's samples in bins. A bin is some consecutive rows: one, or all rows of a sample that is longer than a row,
// whose last one has room for others.
struct WindowBins {
  std::vector<uint32_t> samples;  // the window's samples, bin after bin, in their order in the rows
  std::vector<uint32_t> ends;     // end of each bin in `samples`
  int64_t rows = 0;               // rows of all bins together
};
// `lengths[i]` is the token count of sample i; samples without tokens are in no bin. REQUIRES: seq_len >= 1.
WindowBins best_fit(std::span<const uint32_t> lengths, int64_t seq_len);

// How a block's samples lie end to end, and where its rows begin.
struct BlockLayout {
  std::vector<uint32_t> samples;  // each sample of the block's windows laid end to end, once
  std::vector<int64_t> row_ends;  // in tokens; empty: each row but the last has seq_len tokens
};

}  // namespace millrace::order
