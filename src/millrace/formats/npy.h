// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads and writes NumPy's .npy (docs/format/npy.md; numpy.lib.format, versions 1.0 to 3.0), and token ids and masks
// in fields of a sample: arrays of one dimension, the JSON list of ids, and raw little-endian numbers of 16 or 32
// bits. Thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

// An array in a file. Its members point into the file.
struct NpyArray {
  std::string_view descr;  // '<f4'; empty for a structured dtype
  bool fortran_order = false;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;  // all bytes after the header, whatever the shape
};
// Parses the header. Errors: corruption (cut, bad magic, a header that does not parse), unsupported (version).
[[nodiscard]] Result<NpyArray> parse_npy(std::span<const std::byte> file, std::string_view source);
// Returns the bytes before the data of an array in C order: version 1.0, a multiple of 64 bytes. REQUIRES: at most 64
// dimensions.
std::string npy_header(std::string_view descr, std::span<const uint64_t> shape);

// How ids are written in a field. The last part of the field's name decides.
enum class IdsCoding { kNpy, kJson, kU16, kU32 };
std::optional<IdsCoding> ids_coding(std::string_view field);  // "token_ids.npy", "json", "u16"; nullopt for "text.txt"
// Parses the data of `field` by its coding. Errors: as the functions below; invalid_argument (a field without a
// coding).
[[nodiscard]] Status parse_ids(std::string_view field, std::span<const std::byte> data, std::vector<uint32_t>& ids,
                               std::string_view source);

// Returns the bytes of the ids inside `data`, if they are stored there as uint32 in order (at any alignment). nullopt
// if parse_ids() must convert them, or report an error.
std::optional<std::span<const std::byte>> ids_in_place(std::string_view field, std::span<const std::byte> data);

// Appends ids in memory order, with `width` (2 or 4) bytes each. REQUIRES: the ids fit.
void append_raw_ids(std::string& out, std::span<const uint32_t> ids, size_t width);
// Parses raw ids of `width` bytes. Errors: corruption (not a whole number of ids).
[[nodiscard]] Status parse_raw_ids(std::span<const std::byte> data, size_t width, std::vector<uint32_t>& ids,
                                   std::string_view source);

// Appends the header of `count` raw ids in a version 1.0 file with dtype '<u2' or '<u4'. It always has kNpyHeaderBytes
// bytes.
inline constexpr size_t kNpyHeaderBytes = 128;
void append_npy_header(std::string& out, size_t count, size_t width);

// Appends a version 1.0 file with dtype '<u4' and shape (n,); header padded to 64 bytes as numpy does.
void append_npy_u32(std::string& out, std::span<const uint32_t> ids);
// Does the same with dtype '|u1', for a mask.
void append_npy_u8(std::string& out, std::span<const uint8_t> values);

// Appends the ids of a one-dimensional little-endian integer array (u1, i1, u2, i2, u4, i4, u8, i8) to `ids`, which is
// unchanged on error. `source` is for messages.
// Errors: corruption (cut, bad magic, header that does not parse, size that does not match), unsupported (version,
// dtype, any other number of dimensions), invalid_argument (an id that does not fit 32 bits unsigned).
[[nodiscard]] Status parse_npy_ids(std::span<const std::byte> file, std::vector<uint32_t>& ids,
                                   std::string_view source);

// Returns the values of a one-dimensional array of uint8 or bool, as a view into `file`.
// Errors: corruption and unsupported, as parse_npy_ids().
[[nodiscard]] Result<std::span<const uint8_t>> npy_u8_view(std::span<const std::byte> file, std::string_view source);

// Does the same as parse_npy_ids() for a JSON list such as "[1, 2, 3]", which common recipes write. White space is
// allowed; only integers are.
[[nodiscard]] Status parse_json_ids(std::string_view json, std::vector<uint32_t>& ids, std::string_view source);
// Appends "[1, 2, 3]", byte for byte what Python's json.dumps writes.
void append_json_ids(std::string& out, std::span<const uint32_t> ids);

}  // namespace millrace::formats
