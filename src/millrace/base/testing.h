// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers for random tests and for tests that damage every byte.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace millrace {

// The seed of a random test: MILLRACE_TEST_SEED, or a random seed for the whole program. Report it with SCOPED_TRACE.
// Thread-safe.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("MILLRACE_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  }();
  return seed;
}

// Whether tests do fewer repetitions: under sanitizers, which make each repetition much slower, unless
// MILLRACE_TEST_LONG is set. Thread-safe.
inline bool tests_are_brief() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::getenv("MILLRACE_TEST_LONG") == nullptr;
#else
  return false;
#endif
}

// Returns the number of repetitions for a test that does `all` with MILLRACE_TEST_LONG: half of them without it, a
// fifth in brief tests. Each run uses other seeds.
inline int rounds(int all) {
  if (tests_are_brief()) return (all + 4) / 5;
  return std::getenv("MILLRACE_TEST_LONG") != nullptr ? all : (all + 1) / 2;
}

// Whether to leave out one of dozens of cases: brief tests run a random quarter of them. Not thread-safe.
inline bool leave_out_case() {
  static std::mt19937_64 random(test_seed());
  return tests_are_brief() && random() % 4 != 0;
}

// Returns the bytes of a file that a test damages one after another: with MILLRACE_TEST_LONG all of them, otherwise
// every third from a random start, in brief tests every 13th. Thread-safe.
inline std::vector<size_t> places_to_damage(size_t size_bytes) {
  const size_t plain = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 1 : 3;
  const size_t step = tests_are_brief() ? 13 : plain, begin = test_seed() % step;
  std::vector<size_t> places;
  for (size_t at = begin; at < size_bytes; at += step) places.push_back(at);
  return places;
}

}  // namespace millrace
