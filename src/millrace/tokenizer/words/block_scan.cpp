// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/block_scan.h"

#include <array>

#include "millrace/base/simd.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

// A bit for each of 64 bytes. No byte is in two of letter, number, space and newline; a blank is a space too.
struct Masks {
  uint64_t letter, number, space, newline, blank, apostrophe;
  uint64_t foreign;  // not ASCII
  // Where a grammar asks for them. Of the letters: capital ones, and those without case, with the marks behind letters.
  uint64_t capital, caseless;
  uint64_t slash;
};

#if defined(__x86_64__)

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX512_VBMI2)
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

inline void add_cases(Masks& m, const uint8_t* p) {
  const __m512i bytes = _mm512_loadu_si512(p);
  m.capital = within(bytes, 'A', 26);
  m.slash = _mm512_cmpeq_epi8_mask(bytes, all('/'));
  m.caseless = 0;
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

#include "millrace/tokenizer/words/block_scan.inc"

}  // namespace avx512
MILLRACE_SIMD_END

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX2)
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

inline void add_cases(Masks& m, const uint8_t* p) {
  // SAFETY: unaligned loads of bytes.
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  m.capital = within(low, high, 'A', 26);
  m.slash = equal(low, high, '/');
  m.caseless = 0;
}

inline size_t write_ends(uint64_t starts, size_t at, size_t* ends) {
  size_t count = 0;
  for (; starts != 0; starts &= starts - 1) ends[count++] = at + static_cast<size_t>(__builtin_ctzll(starts));
  return count;
}

#include "millrace/tokenizer/words/block_scan.inc"

}  // namespace avx2
MILLRACE_SIMD_END

#endif

std::vector<BlockScan> scans_for(Grammar grammar) {
#if defined(__x86_64__)
  const auto index = static_cast<size_t>(grammar);
  return runnable_forms<BlockScan>(
      {{SimdLevel::kAvx512Vbmi2, avx512::kScans[index]}, {SimdLevel::kAvx2, avx2::kScans[index]}});
#else
  static_cast<void>(grammar);
  return {};
#endif
}

}  // namespace

std::span<const BlockScan> all_block_scans(Grammar grammar) {
  static const std::vector<BlockScan> scans[] = {scans_for(Grammar::kGpt2), scans_for(Grammar::kLlama3),
                                                 scans_for(Grammar::kQwen2), scans_for(Grammar::kO200k),
                                                 scans_for(Grammar::kTekken)};
  return scans[static_cast<size_t>(grammar)];
}

BlockScan find_block_scan(Grammar grammar) {
  const auto scans = all_block_scans(grammar);
  return scans.empty() ? nullptr : scans.front();
}

}  // namespace millrace::tokenizer
