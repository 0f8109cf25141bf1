// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/simd.h"

namespace millrace {
namespace {

SimdLevel find_level() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return SimdLevel::kNone;
  // No processor has BMI2 without BMI, LZCNT and POPCNT.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2")) return SimdLevel::kSse42;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return SimdLevel::kAvx2;
  if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vbmi2")) return SimdLevel::kAvx512;
  return SimdLevel::kAvx512Vbmi2;
#else
  return SimdLevel::kNone;
#endif
}

}  // namespace

SimdLevel simd_level() {
  static const SimdLevel level = find_level();
  return level;
}

}  // namespace millrace
