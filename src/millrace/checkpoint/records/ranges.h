// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs of neighbouring elements of a row-major array, as boxes. Pure; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

// Returns the boxes that together, in order, hold the elements [begin, end) of an array of `shape`: at most 2 x
// dimensions - 1 boxes. REQUIRES: 0 <= begin < end <= volume(shape).
std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t begin, int64_t end);

}  // namespace millrace::checkpoint
