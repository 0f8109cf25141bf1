// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses the fields of rows, whose bytes state their own form. The bytes are a letter, followed by
//
//   b  bytes          t  UTF-8          j  JSON          n  nothing: the row has no value here
//   a  an array: the length of its dtype, the dtype as NumPy has it, the number of dimensions (a byte each), its sides
//      (int64, little-endian), and its items in C order
//   h  an array with holes: the same, and then a byte per item, which is 1 where the item is a null
//   v  a null in a column of numbers or of arrays of numbers: the dtype
//
// Pure functions; thread-safe.

#include <span>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/loader/fields.h"

namespace millrace::loader {

// Parses a field. The value points into `bytes`. Errors: corruption (cut, unknown letter, an array whose size does not
// match its shape).
[[nodiscard]] Result<Value> parse_typed_value(std::span<const std::byte> bytes, std::string_view where);

}  // namespace millrace::loader
