// SPDX-License-Identifier: Apache-2.0
#pragma once

// What random tests of every room need.

#include <cstdint>
#include <cstdlib>
#include <random>

namespace millrace {

// The seed of a random test: MILLRACE_TEST_SEED, or one for the whole program. Say it with SCOPED_TRACE. Thread-safe.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("MILLRACE_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  }();
  return seed;
}

}  // namespace millrace
