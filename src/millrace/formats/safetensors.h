// SPDX-License-Identifier: Apache-2.0
#pragma once

// Builds and reads the header of safetensors files (docs/format/safetensors.md). The reader makes every check of the
// reference implementation. Offsets are relative to the data buffer, as in the file. Values; thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

enum class Dtype {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
std::string_view dtype_name(Dtype dtype);  // "BF16"
std::optional<Dtype> dtype_from_name(std::string_view name);
int64_t dtype_bits(Dtype dtype);

// Returns the bytes of a dense tensor. Errors: invalid_argument (negative dimension, overflow, not whole bytes).
[[nodiscard]] Result<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape);

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // row-major; empty for a scalar
  int64_t begin = 0;           // in the data buffer
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
  int64_t data_offset = 0;                      // 8 + N: where the data buffer starts in the file
  int64_t data_bytes = 0;
  const TensorInfo* find(std::string_view name) const;  // nullptr when there is none

 private:
  friend struct SafetensorsAccess;
  std::vector<size_t> by_name_;  // indexes into `tensors`, sorted by name
};

// All that is known before any data: the bytes of the header and the place of each tensor.
struct SafetensorsLayout {
  std::string header_bytes;  // length word, JSON, padding: bytes [0, data_offset) of the file
  SafetensorsHeader header;
};
// Orders tensors as the reference writer does (dtype rank descending, then name), sets begin and end, and pads the
// header with spaces so that the data starts at a multiple of `alignment` (8 gives the reference writer's bytes; 4096
// suits O_DIRECT). Errors: invalid_argument (duplicate or reserved name, bad shape, header over 100 MB).
[[nodiscard]] Result<SafetensorsLayout> layout_safetensors(std::vector<TensorInfo> tensors,
                                                           std::map<std::string, std::string> metadata = {},
                                                           int64_t alignment = 8);

// Reads and checks the header against the file's size. Errors: corruption naming file and tensor, those of read_at.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(const RandomReader& file);

}  // namespace millrace::formats
