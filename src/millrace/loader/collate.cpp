// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/collate.h"

#include <algorithm>
#include <array>

namespace millrace::loader {

Result<Collate> parse_collate(std::string_view name) {
  if (name == "pad") return Collate::kPad;
  if (name == "pack") return Collate::kPack;
  return fail(ErrorCode::kInvalidArgument, "collate is 'pad' or 'pack', not '{}'", name);
}

std::span<const ArraySpec> batch_arrays(Collate collate) {
  static constexpr std::array<ArraySpec, 3> kPadArrays{{{"input_ids"}, {"labels"}, {"attention_mask"}}};
  static constexpr std::array<ArraySpec, 3> kPackArrays{{{"input_ids"}, {"labels"}, {"position_ids"}}};
  return collate == Collate::kPad ? std::span<const ArraySpec>(kPadArrays) : std::span<const ArraySpec>(kPackArrays);
}

namespace {

template <class Id>
void fill_row(Collate collate, std::span<const Piece> pieces, int64_t seq_len, int64_t pad_id, int64_t row,
              std::span<std::byte* const> arrays) {
  // SAFETY: the arrays are page-aligned memory of Id, as ArraySpec says.
  const auto row_of = [&](size_t array) { return reinterpret_cast<Id*>(arrays[array]) + row * seq_len; };
  Id* const ids = row_of(0);
  Id* const labels = row_of(1);
  Id* const third = row_of(2);
  int64_t at = 0;
  for (const Piece& piece : pieces) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(piece.ids.size()), seq_len - at);
    for (int64_t i = 0; i < n; ++i) ids[at + i] = static_cast<Id>(piece.ids[static_cast<size_t>(i)]);
    std::copy(ids + at, ids + at + n, labels + at);
    for (int64_t i = 0; piece.mask != nullptr && i < n; ++i) {
      if (!piece.learned(static_cast<size_t>(i))) labels[at + i] = static_cast<Id>(kIgnoreLabel);
    }
    if (collate == Collate::kPack) {
      for (int64_t i = 0; i < n; ++i) third[at + i] = static_cast<Id>(i);
      if (n > 0) labels[at] = static_cast<Id>(kIgnoreLabel);
    } else {
      std::fill(third + at, third + at + n, Id{1});
    }
    at += n;
  }
  std::fill(ids + at, ids + seq_len, static_cast<Id>(pad_id));
  std::fill(labels + at, labels + seq_len, static_cast<Id>(kIgnoreLabel));
  std::fill(third + at, third + seq_len, Id{0});
}

}  // namespace

void collate_row(Collate collate, IdType type, std::span<const Piece> pieces, int64_t seq_len, int64_t pad_id,
                 int64_t row, std::span<std::byte* const> arrays) {
  if (type == IdType::kInt64) {
    fill_row<int64_t>(collate, pieces, seq_len, pad_id, row, arrays);
  } else {
    fill_row<int32_t>(collate, pieces, seq_len, pad_id, row, arrays);
  }
}

}  // namespace millrace::loader
