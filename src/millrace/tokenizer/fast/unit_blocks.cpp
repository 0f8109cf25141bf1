// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/unit_blocks.h"

#include "millrace/base/simd.h"
#include "millrace/tokenizer/fast/unit_scanner.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

// A bit for each of 64 bytes. Those that are not ASCII are neither white nor alone at first.
struct UnitMasks {
  uint64_t white, alone;
  uint64_t foreign;  // not ASCII
  uint64_t tail;     // of UTF-8, behind the first byte of a character
  // First bytes of characters of three or four bytes, of four, of those that are all alone, and those that have to be
  // looked up.
  uint64_t three, four, lead_alone, mixed;
};

#if defined(__x86_64__)

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX512_VBMI2)
namespace unit_avx512 {

inline UnitMasks classify(const uint8_t* p, const UnitClasses& classes) {
  const __m512i bytes = _mm512_loadu_si512(p);
  const __m512i found = _mm512_permutex2var_epi8(_mm512_loadu_si512(classes.of_kind.data()), bytes,
                                                 _mm512_loadu_si512(classes.of_kind.data() + 64));
  UnitMasks m;
  m.foreign = _mm512_movepi8_mask(bytes);
  m.tail = _mm512_cmplt_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xC0)));
  m.three = _mm512_cmpge_epu8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xE0)));
  m.four = _mm512_cmpge_epu8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xF0)));
  const __m512i leads =
      _mm512_maskz_permutexvar_epi8(m.foreign & ~m.tail, bytes, _mm512_loadu_si512(classes.of_lead.data()));
  m.lead_alone = _mm512_test_epi8_mask(leads, _mm512_set1_epi8(UnitClasses::kAlone));
  m.mixed = _mm512_test_epi8_mask(leads, _mm512_set1_epi8(UnitClasses::kMixed));
  m.white = _mm512_test_epi8_mask(found, _mm512_set1_epi8(UnitClasses::kWhite)) & ~m.foreign;
  m.alone = _mm512_test_epi8_mask(found, _mm512_set1_epi8(UnitClasses::kAlone)) & ~m.foreign;
  return m;
}

// Eight at a time, up to seven of them behind the last.
inline void write_units(uint64_t starts, uint64_t ends, size_t count, size_t base, CachedWords::Bounds* units) {
  alignas(64) static constexpr std::array<uint8_t, 64> kPlaces = [] {
    std::array<uint8_t, 64> places{};
    for (size_t i = 0; i < 64; ++i) places[i] = static_cast<uint8_t>(i);
    return places;
  }();
  const __m512i places = _mm512_load_si512(kPlaces.data());
  alignas(64) uint8_t begins_at[64], ends_at[64];
  _mm512_store_si512(begins_at, _mm512_maskz_compress_epi8(starts, places));
  _mm512_store_si512(ends_at, _mm512_maskz_compress_epi8(ends, places));
  const __m512i bases = _mm512_set1_epi32(static_cast<int>(base));
  for (size_t i = 0; i < count; i += 8) {
    // SAFETY: loads of eight bytes each, a store of eight Places of two uint32_t.
    const __m128i from = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(begins_at + i));
    const __m128i to = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(ends_at + i));
    // Masked, by none: g++ 12 warns of the plain form.
    const __m512i pairs = _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_unpacklo_epi8(from, to));
    _mm512_storeu_si512(units + i, _mm512_add_epi32(bases, pairs));
  }
}

#include "millrace/tokenizer/fast/unit_blocks.inc"

}  // namespace unit_avx512
MILLRACE_SIMD_END

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX2)
namespace unit_avx2 {

inline uint64_t bits(__m256i low, __m256i high) {
  const auto low_bits = static_cast<uint32_t>(_mm256_movemask_epi8(low));
  const auto high_bits = static_cast<uint32_t>(_mm256_movemask_epi8(high));
  return uint64_t{high_bits} << 32 | low_bits;
}

inline __m256i table(const std::array<uint8_t, 16>& nibbles) {
  // SAFETY: an unaligned load of 16 bytes.
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(nibbles.data())));
}

// Bytes of 0xFF where a byte is not in the class.
inline __m256i outside(__m256i bytes, __m256i nibbles) {
  const __m256i upper_bits = _mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                              1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i half = _mm256_set1_epi8(0x0F);
  const __m256i lower = _mm256_shuffle_epi8(nibbles, _mm256_and_si256(bytes, half));
  const __m256i upper = _mm256_shuffle_epi8(upper_bits, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half));
  return _mm256_cmpeq_epi8(_mm256_and_si256(lower, upper), _mm256_setzero_si256());
}

inline UnitMasks classify(const uint8_t* p, const UnitClasses& classes) {
  // SAFETY: unaligned loads of bytes.
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  const __m256i white = table(classes.white_nibbles), alone = table(classes.alone_nibbles);
  const __m256i first = _mm256_set1_epi8(static_cast<char>(0xC0));
  UnitMasks m;
  m.foreign = bits(low, high);
  m.tail = bits(_mm256_cmpgt_epi8(first, low), _mm256_cmpgt_epi8(first, high));
  const __m256i three = _mm256_set1_epi8(static_cast<char>(0xDF)), four = _mm256_set1_epi8(static_cast<char>(0xEF));
  m.three = bits(_mm256_cmpgt_epi8(low, three), _mm256_cmpgt_epi8(high, three)) & m.foreign;
  m.four = bits(_mm256_cmpgt_epi8(low, four), _mm256_cmpgt_epi8(high, four)) & m.foreign;
  m.lead_alone = 0;
  m.mixed = m.foreign & ~m.tail;
  m.white = ~bits(outside(low, white), outside(high, white));
  m.alone = ~bits(outside(low, alone), outside(high, alone));
  return m;
}

inline void write_units(uint64_t starts, uint64_t ends, size_t count, size_t base, CachedWords::Bounds* units) {
  for (size_t i = 0; i < count; ++i, starts &= starts - 1, ends &= ends - 1)
    units[i] = {static_cast<uint32_t>(base) + static_cast<uint32_t>(__builtin_ctzll(starts)),
                static_cast<uint32_t>(base) + static_cast<uint32_t>(__builtin_ctzll(ends))};
}

#include "millrace/tokenizer/fast/unit_blocks.inc"

}  // namespace unit_avx2
MILLRACE_SIMD_END

#endif

}  // namespace

void UnitClasses::complete(const UnitScanner& scanner) {
  of_lead.fill(kMixed);
  const auto find_lead = [&](uint32_t lead, uint32_t first, uint32_t count) {
    const auto class_of = [&](uint32_t c) { return of_kind[scanner.kind_of(c)]; };
    const uint8_t found = class_of(first);
    uint32_t same = 1;
    while (same < count && class_of(first + same) == found) ++same;
    if (same == count && found != kWhite) of_lead[lead - 0xC0] = found;
  };
  for (uint32_t lead = 0xC2; lead < 0xE0; ++lead) find_lead(lead, (lead & 0x1F) << 6, 64);
  for (uint32_t lead = 0xE1; lead < 0xF0; ++lead) find_lead(lead, (lead & 0x0F) << 12, 4096);
  white_nibbles = alone_nibbles = {};
  for (uint32_t c = 0; c < 128; ++c) {
    const auto bit = static_cast<uint8_t>(1u << (c >> 4));
    if (of_kind[c] == kWhite) white_nibbles[c & 0x0F] |= bit;
    if (of_kind[c] == kAlone) alone_nibbles[c & 0x0F] |= bit;
  }
}

std::span<const UnitBlockScan> all_unit_block_scans() {
#if defined(__x86_64__)
  static const std::vector<UnitBlockScan> scans = runnable_forms<UnitBlockScan>(
      {{SimdLevel::kAvx512Vbmi2, unit_avx512::scan_units}, {SimdLevel::kAvx2, unit_avx2::scan_units}});
  return scans;
#else
  return {};
#endif
}

UnitBlockScan find_unit_block_scan() {
  const auto scans = all_unit_block_scans();
  return scans.empty() ? nullptr : scans.front();
}

}  // namespace millrace::tokenizer
