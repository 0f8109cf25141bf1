// SPDX-License-Identifier: Apache-2.0
#pragma once

// What random tests, and tests that damage every byte, need in every room.

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

// The bytes of a file that a test damages one after the other: all of them. Where sanitizers make each try many times
// dearer, every 13th from a random one on; MILLRACE_TEST_LONG=1 takes all of them there too. Thread-safe.
inline std::vector<size_t> places_to_damage(size_t size_bytes) {
  size_t begin = 0, step = 1;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (std::getenv("MILLRACE_TEST_LONG") == nullptr) {
    step = 13;
    begin = test_seed() % step;
  }
#endif
  std::vector<size_t> places;
  for (size_t at = begin; at < size_bytes; at += step) places.push_back(at);
  return places;
}

}  // namespace millrace
