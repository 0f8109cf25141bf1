// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/short_words.h"

#include <cstring>

#include "millrace/base/simd.h"

namespace millrace::tokenizer {

PackedIds find_short(const ShortTable& table, const ShortSlot* line, ShortKey key) {
  // Compares all: the processor cannot predict which of them it is, but can predict whether it is one of them. A key of
  // zero finds the ids of an empty slot, which are none.
  const bool second = line[1].key == key, third = line[2].key == key, fourth = line[3].key == key;
  const ShortSlot* const slot = line + (second + 2 * third + 3 * fourth);
  if (slot->key == key) return slot->ids;
  if (line[3].is_empty() || key.bits == 0) return PackedIds::none();
  const ShortSlot* const further = table.find(line, [&](const ShortSlot& other) { return other.key == key; });
  return further == nullptr ? PackedIds::none() : further->ids;
}

namespace {

alignas(64) constexpr ShortSlot kEmptyLine[ShortTable::kLineSlots] = {};

namespace one_by_one {

void look_ahead_from(size_t first, const WordBatch& words, const ShortTable& table, ShortBatch& batch) {
  for (size_t i = first; i < words.size; ++i) {
    const ShortKey key = ShortKey::of(words[i], words.readable_end);
    batch.keys[i] = key;
    batch.lines[i] = key.bits == 0 ? kEmptyLine : table.line(key.hash());
    batch.longs[batch.long_count] = static_cast<uint32_t>(i);
    batch.long_count += key.bits == 0;
  }
}

void look_ahead(const WordBatch& words, const ShortTable& table, ShortBatch& batch) {
  batch.long_count = 0;
  look_ahead_from(0, words, table, batch);
}

void find(size_t words, const ShortTable& table, const ShortBatch& batch, PackedIds* found) {
  for (size_t i = 0; i < words; ++i) found[i] = find_short(table, batch.lines[i], batch.keys[i]);
}

constexpr BatchSteps kSteps{look_ahead, find};

}  // namespace one_by_one

#if defined(__x86_64__)
MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX512)
namespace avx512 {

// Vectors of the compiler's own, and intrinsics for what it has no operators for.
typedef uint64_t Eight __attribute__((vector_size(64)));

// SAFETY (all): vectors of the same size; as many numbers are there.
template <class Vector>
Vector load(const void* from) {
  Vector loaded;
  std::memcpy(&loaded, from, sizeof(loaded));
  return loaded;
}
inline __m512i raw(Eight vector) {
  return reinterpret_cast<__m512i>(vector);
}

// As ShortKey::of and ShortKey::hash have it, of eight words.
inline Eight keys_of(Eight bytes, Eight sizes) {
  const Eight bits = (sizes < 8u ? sizes : Eight{} + 8u) * 8u;
  const Eight key = bytes & (~Eight{} >> (64u - bits));
  const auto is_less = sizes < 8u, is_plain = (sizes == 8u) & (key >= ShortKey::kLeastOfEight);
  return is_less ? key | sizes << ShortKey::kSizeShift : is_plain ? key : Eight{};
}
inline Eight hashes_of(Eight keys) {
  return (keys ^ keys >> 32) * ShortKey::kMultiplier;
}

void look_ahead(const WordBatch& words, const ShortTable& table, ShortBatch& batch) {
  const auto first_line = reinterpret_cast<uint64_t>(table.lines());
  constexpr uint64_t kLineBytes = sizeof(kEmptyLine);
  const Eight empty_line = Eight{} + reinterpret_cast<uint64_t>(kEmptyLine);
  const auto shift = static_cast<uint64_t>(table.hash_shift());
  size_t i = 0;
  batch.long_count = 0;
  for (; i + 8 <= words.size && words.readable_end - words[i + 7].data() >= 8; i += 8) {
    const auto begins = load<Eight>(words.begins + i), ends = load<Eight>(words.ends + i);
    const __m512i bytes = _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), 0xFF, raw(begins), words.text, 1);
    const Eight keys = keys_of(reinterpret_cast<Eight>(bytes), ends - begins);
    const Eight lines = keys == 0u ? empty_line : first_line + (hashes_of(keys) >> shift) * kLineBytes;
    std::memcpy(&batch.keys[i], &keys, sizeof(keys));
    std::memcpy(&batch.lines[i], &lines, sizeof(lines));
    for (size_t k = 0; k < 8; ++k) __builtin_prefetch(batch.lines[i + k]);
    const __mmask8 is_long = _mm512_testn_epi64_mask(raw(keys), raw(keys));
    const __m256i indices =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int>(i)));
    const __m256i longs = _mm256_maskz_compress_epi32(is_long, indices);
    std::memcpy(&batch.longs[batch.long_count], &longs, sizeof(longs));
    batch.long_count += static_cast<size_t>(__builtin_popcount(is_long));
  }
  one_by_one::look_ahead_from(i, words, table, batch);
}

void find(size_t words, const ShortTable& table, const ShortBatch& batch, PackedIds* found) {
  constexpr uint32_t kKeys = 0x55;  // of the eight numbers in a line
  for (size_t i = 0; i < words; ++i) {
    const ShortSlot* const line = batch.lines[i];
    const Eight key = Eight{} + batch.keys[i].bits;
    const uint32_t equal = _mm512_cmpeq_epi64_mask(raw(load<Eight>(line)), raw(key)) & kKeys;
    found[i] = equal == 0 ? find_short(table, line, batch.keys[i]) : line[_tzcnt_u32(equal) / 2].ids;
  }
}

constexpr BatchSteps kSteps{look_ahead, find};

}  // namespace avx512
MILLRACE_SIMD_END
#endif

}  // namespace

std::span<const BatchSteps> all_batch_steps() {
  static const std::vector<BatchSteps> steps = runnable_forms<BatchSteps>({
#if defined(__x86_64__)
      {SimdLevel::kAvx512, avx512::kSteps},
#endif
      {SimdLevel::kNone, one_by_one::kSteps}});
  return steps;
}

const BatchSteps& batch_steps() {
  return all_batch_steps().front();
}

}  // namespace millrace::tokenizer
