// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/collate.h"

#include <algorithm>
#include <array>

#include "millrace/base/simd.h"

namespace millrace::loader {

Result<Collate> parse_collate(std::string_view name) {
  for (const Collate collate : {Collate::kPad, Collate::kPack, Collate::kBestFit}) {
    if (name == collate_name(collate)) return collate;
  }
  return fail(ErrorCode::kInvalidArgument, "collate is 'pad', 'pack' or 'best_fit', not '{}'", name);
}

std::string_view collate_name(Collate collate) {
  if (collate == Collate::kPad) return "pad";
  return collate == Collate::kPack ? "pack" : "best_fit";
}

std::span<const ArraySpec> batch_arrays(Collate collate, bool documents) {
  static constexpr std::array<ArraySpec, 3> kPadArrays{{{"input_ids"}, {"labels"}, {"attention_mask"}}};
  static constexpr std::array<ArraySpec, 4> kPackArrays{
      {{"input_ids"}, {"labels"}, {"position_ids"}, {"document_ids"}}};
  if (collate == Collate::kPad) return kPadArrays;
  return std::span(kPackArrays).first(documents ? 4 : 3);
}

namespace {

// Rows are written by these two: they are most of what packing costs.
template <class Id>
void copy_ids(const uint32_t* ids, int64_t count, Id* out, Id* labels) {
  for (int64_t i = 0; i < count; ++i) labels[i] = out[i] = static_cast<Id>(ids[i]);
}
template <class Id>
void count_up(int64_t count, Id* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Id>(i);
}

#if defined(__x86_64__)

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX2)

// SAFETY of both: vectors of bytes at any address, within `count` numbers.
void copy_ids_avx2(const uint32_t* ids, int64_t count, int64_t* out, int64_t* labels) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const __m256i wide = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(ids + i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), wide);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(labels + i), wide);
  }
  for (; i < count; ++i) labels[i] = out[i] = static_cast<int64_t>(ids[i]);
}

void count_up_avx2(int64_t count, int64_t* out) {
  __m256i next = _mm256_setr_epi64x(0, 1, 2, 3);
  const __m256i four = _mm256_set1_epi64x(4);
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), next);
    next = _mm256_add_epi64(next, four);
  }
  for (; i < count; ++i) out[i] = i;
}

MILLRACE_SIMD_END

template <>
void copy_ids<int64_t>(const uint32_t* ids, int64_t count, int64_t* out, int64_t* labels) {
  if (has_simd(SimdLevel::kAvx2)) return copy_ids_avx2(ids, count, out, labels);
  for (int64_t i = 0; i < count; ++i) labels[i] = out[i] = static_cast<int64_t>(ids[i]);
}
template <>
void count_up<int64_t>(int64_t count, int64_t* out) {
  if (has_simd(SimdLevel::kAvx2)) return count_up_avx2(count, out);
  for (int64_t i = 0; i < count; ++i) out[i] = i;
}

#endif

template <class Id>
void fill_row(Collate collate, std::span<const Piece> pieces, int64_t seq_len, int64_t pad_id, int64_t row,
              std::span<std::byte* const> arrays) {
  // SAFETY: the arrays are page-aligned memory of Id, as ArraySpec says.
  const auto row_of = [&](size_t array) { return reinterpret_cast<Id*>(arrays[array]) + row * seq_len; };
  Id* const ids = row_of(0);
  Id* const labels = row_of(1);
  Id* const third = row_of(2);
  Id* const documents = arrays.size() > 3 ? row_of(3) : nullptr;
  int64_t at = 0;
  Id document = 0;
  for (const Piece& piece : pieces) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(piece.ids.size()), seq_len - at);
    copy_ids(piece.ids.data(), n, ids + at, labels + at);
    for (int64_t i = 0; piece.mask != nullptr && i < n; ++i) {
      if (!piece.learned(static_cast<size_t>(i))) labels[at + i] = static_cast<Id>(kIgnoreLabel);
    }
    if (collate != Collate::kPad) {
      count_up(n, third + at);
      if (n > 0) labels[at] = static_cast<Id>(kIgnoreLabel);
      if (documents != nullptr && n > 0) std::fill(documents + at, documents + at + n, document++);
    } else {
      std::fill(third + at, third + at + n, Id{1});
    }
    at += n;
  }
  std::fill(ids + at, ids + seq_len, static_cast<Id>(pad_id));
  std::fill(labels + at, labels + seq_len, static_cast<Id>(kIgnoreLabel));
  std::fill(third + at, third + seq_len, Id{0});
  if (documents != nullptr) std::fill(documents + at, documents + seq_len, Id{-1});
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
