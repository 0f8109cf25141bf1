// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers for random tests and for tests that damage every byte.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace millrace {

// The seed of a random test: MILLRACE_TEST_SEED, or one for the whole program. Say it with SCOPED_TRACE. Thread-safe.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("MILLRACE_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  }();
  return seed;
}

// Whether tests repeat themselves less often: under sanitizers, which make each repetition much slower, unless
// MILLRACE_TEST_LONG is set. Thread-safe.
inline bool tests_are_brief() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::getenv("MILLRACE_TEST_LONG") == nullptr;
#else
  return false;
#endif
}

// How often to do what a test does `all` times with MILLRACE_TEST_LONG: a half of it without, a fifth in brief tests.
// Other seeds come with each run.
inline int rounds(int all) {
  if (tests_are_brief()) return (all + 4) / 5;
  return std::getenv("MILLRACE_TEST_LONG") != nullptr ? all : (all + 1) / 2;
}

// Whether to leave out one of dozens of cases: brief tests take one of four, by chance. Not thread-safe.
inline bool leave_out_case() {
  static std::mt19937_64 random(test_seed());
  return tests_are_brief() && random() % 4 != 0;
}

// The bytes of a file that a test damages one after the other: all of them with MILLRACE_TEST_LONG; else every third
// from a random one on, in brief tests every 13th. Thread-safe.
inline std::vector<size_t> places_to_damage(size_t size_bytes) {
  const size_t plain = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 1 : 3;
  const size_t step = tests_are_brief() ? 13 : plain, begin = test_seed() % step;
  std::vector<size_t> places;
  for (size_t at = begin; at < size_bytes; at += step) places.push_back(at);
  return places;
}

}  // namespace millrace
