// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fills the arrays of a batch from token ids. Pure functions; thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::loader {

enum class Collate {
  kPad,      // a row is one sample, cut at seq_len, padded on the right
  kPack,     // a row is seq_len tokens of concatenated samples
  kBestFit,  // a row is whole samples, together at most seq_len tokens, padded on the right; longer samples are cut
};
[[nodiscard]] Result<Collate> parse_collate(std::string_view name);  // "pad", "pack", "best_fit"
std::string_view collate_name(Collate collate);

inline constexpr int64_t kIgnoreLabel = -100;  // torch.nn.CrossEntropyLoss's ignore_index

enum class IdType { kInt32, kInt64 };
inline size_t id_bytes(IdType type) {
  return type == IdType::kInt64 ? 8 : 4;
}

// Consecutive tokens of a row that belong to one sample.
struct Piece {
  std::span<const uint32_t> ids;
  // Bit `mask_begin + i` (lowest bit of a byte first) is 1 where ids[i] is learned; nullptr: all are learned.
  const uint8_t* mask = nullptr;
  size_t mask_begin = 0;

  bool learned(size_t i) const {
    const size_t bit = mask_begin + i;
    return mask == nullptr || ((mask[bit / 8] >> (bit % 8)) & 1) != 0;
  }
};

// One array of a batch: [rows, seq_len] of the id type, row-major, C-contiguous.
struct ArraySpec {
  std::string_view name;
};
// Returns the arrays of a batch. All have "input_ids" and "labels". kPad adds "attention_mask" (1 on tokens, 0 on
// padding). kPack and kBestFit add "position_ids" (0 at the start of each sample in the row) and, with `documents`,
// "document_ids" (0, 1, ... in a row, -1 on padding).
std::span<const ArraySpec> batch_arrays(Collate collate, bool documents);

// Writes row `row` of all arrays; `arrays[i]` is the start of array i of batch_arrays. Labels are the ids themselves,
// because models shift them, as those of Hugging Face do. The label is kIgnoreLabel on padding and where a piece's
// mask is 0. With kPack and kBestFit it is kIgnoreLabel also on the first token of every sample, which the previous
// sample must not predict.
void collate_row(Collate collate, IdType type, std::span<const Piece> pieces, int64_t seq_len, int64_t pad_id,
                 int64_t row, std::span<std::byte* const> arrays);

}  // namespace millrace::loader
