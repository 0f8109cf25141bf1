// SPDX-License-Identifier: Apache-2.0
#pragma once

// NumPy's .npy for one-dimensional arrays of token ids and masks (docs/format/npy.md; numpy.lib.format, versions 1.0 to
// 3.0), and the JSON list of ids. Thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

// Appends a version 1.0 file with dtype '<u4' and shape (n,); header padded to 64 bytes as numpy does.
void append_npy_u32(std::string& out, std::span<const uint32_t> ids);
// The same with dtype '|u1': a mask.
void append_npy_u8(std::string& out, std::span<const uint8_t> values);

// Appends the ids of a one-dimensional little-endian integer array (u1, i1, u2, i2, u4, i4, u8, i8) to `ids`, which is
// unchanged on error. `source` is for messages.
// Errors: corruption (cut, bad magic, header that does not parse, size that does not match), unsupported (version,
// dtype, any other number of dimensions), invalid_argument (an id that does not fit 32 bits unsigned).
[[nodiscard]] Status parse_npy_ids(std::span<const std::byte> file, std::vector<uint32_t>& ids,
                                   std::string_view source);

// The values of a one-dimensional array of uint8 or bool, as a view into `file`.
// Errors: corruption and unsupported, as parse_npy_ids has them.
[[nodiscard]] Result<std::span<const uint8_t>> npy_u8_view(std::span<const std::byte> file, std::string_view source);

// The same as parse_npy_ids for "[1, 2, 3]", the JSON list that the field's recipes write: whitespace allowed, integers
// only.
[[nodiscard]] Status parse_json_ids(std::string_view json, std::vector<uint32_t>& ids, std::string_view source);
// Appends "[1, 2, 3]", byte for byte what Python's json.dumps writes.
void append_json_ids(std::string& out, std::span<const uint32_t> ids);

}  // namespace millrace::formats
