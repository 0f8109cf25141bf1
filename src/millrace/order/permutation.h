// SPDX-License-Identifier: Apache-2.0
#pragma once

// A permutation of [0, n), computed number by number without a table. A Feistel network permutes the smallest domain
// of 4^b numbers that holds n; it is applied repeatedly until the result is below n. docs/format/order.md ("Full")
// defines the permutation to the bit. A value; thread-safe.

#include <array>
#include <cstdint>

namespace millrace::order {

class Permutation {
 public:
  // REQUIRES: size >= 1.
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  int64_t size() const { return static_cast<int64_t>(size_); }
  // Takes a few hundred nanoseconds. REQUIRES: 0 <= i < size().
  int64_t at(int64_t i) const;

 private:
  static constexpr int kRounds = 8;  // four rounds suffice for random round functions; small domains need more
  uint64_t size_;
  int half_bits_ = 1;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace millrace::order
