// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <limits>

#include "millrace/base/simd.h"
#include "millrace/base/text/utf8.h"

namespace millrace {
namespace {

// What a code point becomes, the first byte lowest, as if it had two, three or four; of one, or of a vector of them,
// which is not an argument by value.
struct Bytes {
  template <class T>
  static void two(const T& c, T& bytes) {
    bytes = 0x80C0u | c >> 6 | (c & 63u) << 8;
  }
  template <class T>
  static void three(const T& c, T& bytes) {
    bytes = 0x8080E0u | c >> 12 | (c >> 6 & 63u) << 8 | (c & 63u) << 16;
  }
  template <class T>
  static void four(const T& c, T& bytes) {
    bytes = 0x808080F0u | c >> 18 | (c >> 12 & 63u) << 8 | (c >> 6 & 63u) << 16 | (c & 63u) << 24;
  }
};

constexpr size_t kSome = 8;

// False: some of the kSome characters are beyond ASCII, and nothing of use was written.
template <class Char>
bool write_if_ascii(const Char* code_points, char* out) {
  constexpr uint64_t kBeyond = ~uint64_t{0} / std::numeric_limits<Char>::max() * static_cast<Char>(~Char{0x7F});
  std::array<uint64_t, kSome * sizeof(Char) / sizeof(uint64_t)> words;
  std::memcpy(words.data(), code_points, sizeof(words));
  uint64_t all = 0;
  for (const uint64_t word : words) all |= word;
  if ((all & kBeyond) != 0) return false;
  for (size_t i = 0; i < kSome; ++i) out[i] = static_cast<char>(code_points[i]);
  return true;
}

// A character at a time, but for ASCII.
template <class Char>
char* write_one_by_one(std::span<const Char> code_points, char* out) {
  bool has_surrogate = false;
  const auto write = [&](uint32_t c) {
    has_surrogate |= (c & ~0x7FFu) == 0xD800;
    uint32_t bytes = c;
    if (c >= 0x10000)
      Bytes::four(c, bytes);
    else if (c >= 0x800)
      Bytes::three(c, bytes);
    else if (c >= 0x80)
      Bytes::two(c, bytes);
    std::memcpy(out, &bytes, sizeof(bytes));
    out += 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
  };
  for (; code_points.size() >= kSome; code_points = code_points.subspan(kSome)) {
    if (write_if_ascii(code_points.data(), out))
      out += kSome;
    else
      for (const uint32_t c : code_points.first(kSome)) write(c);
  }
  for (const uint32_t c : code_points) write(c);
  return has_surrogate ? nullptr : out;
}

#if defined(__x86_64__)

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX512_VBMI2)

template <class T>
using Sixteen __attribute__((vector_size(16 * sizeof(T)))) = T;

// Sixteen at a time: computes four bytes for each, then moves the used ones together.
template <class Char>
char* write_sixteens(std::span<const Char> code_points, char* out) {
  using Vector = Sixteen<uint32_t>;
  Vector surrogates{};
  size_t i = 0;
  for (; code_points.size() - i >= 16; i += 16) {
    Sixteen<Char> loaded;
    std::memcpy(&loaded, code_points.data() + i, sizeof(loaded));
    const auto c = __builtin_convertvector(loaded, Vector);
    Vector bytes = c, longer;
    Vector kept = Vector{} + 0x80u;  // the upper bit of each byte that stays
    const auto use = [&](const Vector& has_more, uint32_t byte) __attribute__((always_inline)) {
      bytes = has_more ? longer : bytes;
      kept |= has_more ? Vector{} + byte : Vector{};
    };
    Bytes::two(c, longer);
    use(c >= 0x80u, 0x8000);
    if constexpr (sizeof(Char) > 1) {
      Bytes::three(c, longer);
      use(c >= 0x800u, 0x800000);
      surrogates |= (c & ~0x7FFu) == 0xD800u ? c : Vector{};
    }
    if constexpr (sizeof(Char) > 2) {
      Bytes::four(c, longer);
      use(c >= 0x10000u, 0x80000000);
    }
    // SAFETY: vectors of the same size.
    const __mmask64 mask = _mm512_movepi8_mask(reinterpret_cast<__m512i>(kept));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(mask, reinterpret_cast<__m512i>(bytes)));
    out += __builtin_popcountll(mask);
  }
  out = write_one_by_one(code_points.subspan(i), out);
  bool has_surrogate = false;
  for (size_t k = 0; k < 16; ++k) has_surrogate |= surrogates[k] != 0;
  return has_surrogate ? nullptr : out;
}

MILLRACE_SIMD_END

template <class Char>
char* write(std::span<const Char> code_points, char* out) {
  return has_simd(SimdLevel::kAvx512Vbmi2) ? write_sixteens(code_points, out) : write_one_by_one(code_points, out);
}

#else

template <class Char>
char* write(std::span<const Char> code_points, char* out) {
  return write_one_by_one(code_points, out);
}

#endif

}  // namespace

char* write_utf8(std::span<const uint8_t> code_points, char* out) {
  return write(code_points, out);
}
char* write_utf8(std::span<const uint16_t> code_points, char* out) {
  return write(code_points, out);
}
char* write_utf8(std::span<const uint32_t> code_points, char* out) {
  return write(code_points, out);
}

}  // namespace millrace
