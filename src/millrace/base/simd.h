// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the vector instructions of this processor, and compiles code for them. One binary serves all processors: code
// for a level is compiled between MILLRACE_SIMD_BEGIN(MILLRACE_TARGET_...) and MILLRACE_SIMD_END, or as a function
// with [[gnu::target(MILLRACE_TARGET_...)]]. It is called only if has_simd() returns true for its level. Thread-safe.

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace millrace {

// Each level includes the lower ones. Processors other than x86-64 have kNone.
enum class SimdLevel : uint8_t {
  kNone,
  kSse42,        // SSE4.2 with carry-less multiplication: Westmere (2010)
  kAvx2,         // AVX2 with BMI: Haswell (2013), Zen 1
  kAvx512,       // F, BW, DQ and VL: Skylake-SP (2017)
  kAvx512Vbmi2,  // VBMI and VBMI2 as well: Ice Lake (2019), Zen 4
};

// The highest level of this processor, detected once.
SimdLevel simd_level();

inline bool has_simd(SimdLevel level) {
  return simd_level() >= level;
}

// One of several forms of a function, with the level that it needs.
template <class Function>
struct SimdForm {
  SimdLevel level;
  Function function;
};

// Returns the forms that this processor can run, in the given order. Callers list the fastest first.
template <class Function>
std::vector<Function> runnable_forms(std::initializer_list<SimdForm<Function>> forms) {
  std::vector<Function> runnable;
  for (const auto& form : forms)
    if (has_simd(form.level)) runnable.push_back(form.function);
  return runnable;
}

}  // namespace millrace

#if defined(__x86_64__)

#include <immintrin.h>

#define MILLRACE_TARGET_SSE42 "sse4.2,pclmul"
#define MILLRACE_TARGET_AVX2 "avx2,bmi,bmi2,lzcnt,popcnt"
#define MILLRACE_TARGET_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,lzcnt,popcnt"
#define MILLRACE_TARGET_AVX512_VBMI2 "avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt"

// Two steps, so that macros in `text` are expanded before it becomes a string.
#define MILLRACE_PRAGMA_OF(text) _Pragma(#text)
#define MILLRACE_PRAGMA(text) MILLRACE_PRAGMA_OF(text)
#if defined(__clang__)
#define MILLRACE_SIMD_BEGIN(target_list) \
  MILLRACE_PRAGMA(clang attribute push(__attribute__((target(target_list))), apply_to = function))
#define MILLRACE_SIMD_END _Pragma("clang attribute pop")
#else
#define MILLRACE_SIMD_BEGIN(target_list) MILLRACE_PRAGMA(GCC push_options) MILLRACE_PRAGMA(GCC target(target_list))
#define MILLRACE_SIMD_END _Pragma("GCC pop_options")
#endif

#endif
