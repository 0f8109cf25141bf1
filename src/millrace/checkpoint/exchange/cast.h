// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts floating-point numbers between F64, F32, F16 and BF16. Rounds to the nearest, ties to even, like torch.
// Pure; thread-safe.

#include <cstddef>
#include <cstdint>

#include "millrace/formats/safetensors.h"

namespace millrace::checkpoint {

// Returns whether cast() can convert `dtype`.
bool is_castable(formats::Dtype dtype);

// Converts `count` numbers. Neither side need be aligned. REQUIRES: is_castable(from), is_castable(to); no overlap.
void cast(const std::byte* source, formats::Dtype from, std::byte* target, formats::Dtype to, int64_t count);

}  // namespace millrace::checkpoint
