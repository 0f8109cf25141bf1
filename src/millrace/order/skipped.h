// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps that training skips, such as those around a spike of the loss. They are part of the loader's state. Pure
// functions; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::order {

// The steps of `epoch` whose first position is in [begin, end). In a mixture: the steps of pass `epoch` whose number is
// in [begin, end).
struct SkippedSteps {
  uint64_t epoch = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SkippedSteps&) const = default;
};

// Returns whether the step at `position` is skipped. REQUIRES: `skipped` is sorted by epoch, then begin, and its
// ranges do not touch, as add_skipped() leaves them.
bool is_skipped(std::span<const SkippedSteps> skipped, uint64_t epoch, int64_t position);
void add_skipped(std::vector<SkippedSteps>& skipped, const SkippedSteps& more);
// Returns how many multiples of `stride` in [0, end) are skipped in `epoch`. REQUIRES: stride >= 1.
int64_t count_skipped(std::span<const SkippedSteps> skipped, uint64_t epoch, int64_t stride, int64_t end);

}  // namespace millrace::order
