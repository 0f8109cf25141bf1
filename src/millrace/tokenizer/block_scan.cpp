// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/block_scan.h"

#include <array>

#include "millrace/tokenizer/unicode_tables.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::tokenizer {
namespace {

// A bit for each of 64 bytes. No byte is in two of letter, number, space and newline; a blank is a space too.
struct Masks {
  uint64_t letter, number, space, newline, blank, apostrophe;
  uint64_t foreign;  // not ASCII
};

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")
namespace avx512 {

inline __m512i all(int c) {
  return _mm512_set1_epi8(static_cast<char>(c));
}
inline uint64_t within(__m512i bytes, int first, int count) {
  return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(bytes, all(first)), all(count));
}

inline Masks classify(const uint8_t* p) {
  const __m512i bytes = _mm512_loadu_si512(p);
  Masks m;
  m.letter = within(_mm512_or_si512(bytes, all(0x20)), 'a', 26);
  m.number = within(bytes, '0', 10);
  m.blank = _mm512_cmpeq_epi8_mask(bytes, all(' '));
  m.newline = _mm512_cmpeq_epi8_mask(bytes, all('\n')) | _mm512_cmpeq_epi8_mask(bytes, all('\r'));
  m.space = (within(bytes, '\t', 5) | m.blank) & ~m.newline;
  m.apostrophe = _mm512_cmpeq_epi8_mask(bytes, all('\''));
  m.foreign = _mm512_movepi8_mask(bytes);
  return m;
}

// Eight at a time: those that are too many go where the next ones are written.
inline size_t write_ends(uint64_t starts, size_t at, size_t* ends) {
  alignas(64) static constexpr std::array<uint8_t, 64> kNumbers = [] {
    std::array<uint8_t, 64> numbers{};
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint8_t>(i);
    return numbers;
  }();
  alignas(64) std::array<uint8_t, 64> places;
  const __m512i numbers = _mm512_load_si512(kNumbers.data());
  _mm512_store_si512(places.data(), _mm512_maskz_compress_epi8(starts, numbers));
  const auto count = static_cast<size_t>(__builtin_popcountll(starts));
  for (size_t i = 0; i < count; i += 8) {
    // SAFETY: eight bytes to eight numbers.
    const __m512i eight =
        _mm512_maskz_cvtepu8_epi64(0xFF, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&places[i])));
    _mm512_storeu_si512(ends + i, _mm512_add_epi64(eight, _mm512_set1_epi64(static_cast<long long>(at))));
  }
  return count;
}

#include "millrace/tokenizer/block_scan.inc"

}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
namespace avx2 {

inline __m256i all(int c) {
  return _mm256_set1_epi8(static_cast<char>(c));
}
inline uint64_t bits(__m256i low, __m256i high) {
  const auto low_bits = static_cast<uint32_t>(_mm256_movemask_epi8(low));
  const auto high_bits = static_cast<uint32_t>(_mm256_movemask_epi8(high));
  return uint64_t{high_bits} << 32 | low_bits;
}
inline __m256i within_half(__m256i bytes, int first, int count) {
  const __m256i offset = _mm256_sub_epi8(bytes, all(first));
  return _mm256_cmpeq_epi8(_mm256_min_epu8(offset, all(count - 1)), offset);
}
inline uint64_t within(__m256i low, __m256i high, int first, int count) {
  return bits(within_half(low, first, count), within_half(high, first, count));
}
inline uint64_t equal(__m256i low, __m256i high, int c) {
  return bits(_mm256_cmpeq_epi8(low, all(c)), _mm256_cmpeq_epi8(high, all(c)));
}

inline Masks classify(const uint8_t* p) {
  // SAFETY: unaligned loads of bytes.
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  Masks m;
  m.letter = within(_mm256_or_si256(low, all(0x20)), _mm256_or_si256(high, all(0x20)), 'a', 26);
  m.number = within(low, high, '0', 10);
  m.blank = equal(low, high, ' ');
  m.newline = equal(low, high, '\n') | equal(low, high, '\r');
  m.space = (within(low, high, '\t', 5) | m.blank) & ~m.newline;
  m.apostrophe = equal(low, high, '\'');
  m.foreign = bits(low, high);
  return m;
}

inline size_t write_ends(uint64_t starts, size_t at, size_t* ends) {
  size_t count = 0;
  for (; starts != 0; starts &= starts - 1) ends[count++] = at + static_cast<size_t>(__builtin_ctzll(starts));
  return count;
}

#include "millrace/tokenizer/block_scan.inc"

}  // namespace avx2
#pragma GCC pop_options

#endif

struct Scans {
  BlockScan scans[3] = {};
};

Scans scans_for(Grammar grammar) {
  Scans found;
#if defined(__x86_64__)
  const auto index = static_cast<size_t>(grammar);
  size_t count = 0;
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi2"))
    found.scans[count++] = avx512::kScans[index];
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) found.scans[count++] = avx2::kScans[index];
#else
  static_cast<void>(grammar);
#endif
  return found;
}

}  // namespace

const BlockScan* all_block_scans(Grammar grammar) {
  static const Scans scans[] = {scans_for(Grammar::kGpt2), scans_for(Grammar::kLlama3), scans_for(Grammar::kQwen2)};
  return scans[static_cast<size_t>(grammar)].scans;
}

BlockScan find_block_scan(Grammar grammar) {
  return all_block_scans(grammar)[0];
}

}  // namespace millrace::tokenizer
