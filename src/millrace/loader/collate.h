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
  kPad,      // a row is one sample: cut at seq_len, padded on the right
  kPack,     // a row is seq_len tokens of samples laid end to end
  kBestFit,  // a row is whole samples of up to seq_len tokens together, padded on the right; longer samples are cut
};
[[nodiscard]] Result<Collate> parse_collate(std::string_view name);  // "pad", "pack", "best_fit"
std::string_view collate_name(Collate collate);

inline constexpr int64_t kIgnoreLabel = -100;  // torch.nn.CrossEntropyLoss's ignore_index

enum class IdType { kInt32, kInt64 };
inline size_t id_bytes(IdType type) {
  return type == IdType::kInt64 ? 8 : 4;
}

// Tokens that lie next to each other in a row and belong to one sample.
struct Piece {
  std::span<const uint32_t> ids;
  // Bit `mask_begin + i`, the lowest of a byte first, is 1 where ids[i] is learned; nullptr: all are.
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
// "input_ids" and "labels". For pad also "attention_mask" (1 on tokens, 0 on padding). For the others "position_ids" (0
// at the start of each sample in the row) and, with `documents`, "document_ids" (0, 1, ... in a row, -1 on padding).
std::span<const ArraySpec> batch_arrays(Collate collate, bool documents);

// Writes row `row` of all arrays; `arrays[i]` is the start of array i of batch_arrays. Labels are the ids themselves:
// models shift them, as Hugging Face's do. The label is kIgnoreLabel on padding and where a piece's mask is 0. Except
// for pad, it is so on the first token of every sample, which the sample before must not predict.
void collate_row(Collate collate, IdType type, std::span<const Piece> pieces, int64_t seq_len, int64_t pad_id,
                 int64_t row, std::span<std::byte* const> arrays);

}  // namespace millrace::loader
