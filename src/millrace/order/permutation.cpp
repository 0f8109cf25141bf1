// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/permutation.h"

#include "millrace/order/detail/random_stream.h"

namespace millrace::order {

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch) : size_(static_cast<uint64_t>(size)) {
  constexpr uint64_t kFullStream = 4;  // the purpose of these random numbers; part of their key
  while (half_bits_ < 32 && (uint64_t{1} << 2 * half_bits_) < size_) ++half_bits_;
  for (size_t round = 0; round < keys_.size(); ++round) {
    keys_[round] = detail::RandomStream({seed, epoch, kFullStream, round}).state();
  }
}

// Fewer than four steps are needed on average, since the domain is less than four times as large as [0, n).
int64_t Permutation::at(int64_t i) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto number = static_cast<uint64_t>(i);
  do {
    uint64_t left = number >> half_bits_, right = number & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (detail::mix((key ^ right) + detail::kGolden) & mask);
      left = right;
      right = next;
    }
    number = left << half_bits_ | right;
  } while (number >= size_);
  return static_cast<int64_t>(number);
}

}  // namespace millrace::order
