// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/detail/csv_scan.h"

#include <algorithm>

#include "millrace/base/simd.h"

namespace millrace::formats::detail {

void mark_separators_plain(std::string_view text, char delimiter, uint64_t* marks) {
  std::fill_n(marks, (text.size() + 63) / 64, 0);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == delimiter || c == '"' || c == '\n' || c == '\r') marks[i / 64] |= uint64_t{1} << i % 64;
  }
}

#if defined(__x86_64__)
namespace {

MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_AVX2)
uint64_t mark_32_bytes(const char* text, __m256i delimiter) {
  // SAFETY: an unaligned load of 32 bytes that the caller has.
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text));
  const __m256i ends = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\n')),
                                       _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\r')));
  const __m256i cells =
      _mm256_or_si256(_mm256_cmpeq_epi8(bytes, delimiter), _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"')));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_or_si256(ends, cells)));
}

void mark_separators_avx2(std::string_view text, char delimiter, uint64_t* marks) {
  const __m256i wanted = _mm256_set1_epi8(delimiter);
  size_t at = 0;
  for (; text.size() - at >= 64; at += 64) {
    *marks++ = mark_32_bytes(text.data() + at, wanted) | mark_32_bytes(text.data() + at + 32, wanted) << 32;
  }
  mark_separators_plain(text.substr(at), delimiter, marks);
}
MILLRACE_SIMD_END

}  // namespace
#endif

MarkSeparators mark_separators() {
  static const MarkSeparators fastest = runnable_forms<MarkSeparators>({
#if defined(__x86_64__)
                                                                           {SimdLevel::kAvx2, mark_separators_avx2},
#endif
                                                                           {SimdLevel::kNone, mark_separators_plain}})
                                            .front();
  return fastest;
}

SeparatorCursor::SeparatorCursor(std::string_view text, char delimiter, size_t begin)
    : text_(text), delimiter_(delimiter), mark_(mark_separators()) {
  if (refill(begin)) bits_ = marks_[0];
}

bool SeparatorCursor::refill(size_t window) {
  window_ = std::min(window, text_.size());
  word_ = 0;
  const std::string_view part = text_.substr(window_, kWords * 64);
  words_ = (part.size() + 63) / 64;
  mark_(part, delimiter_, marks_.data());
  return words_ > 0;
}

void SeparatorCursor::skip_to(size_t at) {
  if (at < window_ || at >= window_ + words_ * 64) {
    bits_ = refill(at) ? marks_[0] : 0;
    return;
  }
  word_ = (at - window_) / 64;
  bits_ = marks_[word_] & (~uint64_t{0} << (at - window_) % 64);
}

}  // namespace millrace::formats::detail
