// SPDX-License-Identifier: Apache-2.0
#pragma once

// The random numbers of docs/format/order.md. Values.

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace millrace::order::detail {

inline constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
inline uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

class RandomStream {
 public:
  explicit RandomStream(std::initializer_list<uint64_t> words) {
    for (const uint64_t word : words) state_ = mix((state_ ^ word) + kGolden);
  }

  // Returns a uniform number in [0, n): the high half of a 64 x 64 bit product. Draws again for the few biased low
  // halves (Lemire, 2019).
  uint64_t below(uint64_t n) {
    Wide product = static_cast<Wide>(next()) * n;
    if (static_cast<uint64_t>(product) < n) {
      const uint64_t biased = (0 - n) % n;  // 2^64 mod n
      while (static_cast<uint64_t>(product) < biased) product = static_cast<Wide>(next()) * n;
    }
    return static_cast<uint64_t>(product >> 64);
  }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

  // Returns the state; before the first draw it is a hash of the words.
  uint64_t state() const { return state_; }

 private:
  using Wide = unsigned __int128;
  uint64_t next() { return mix(state_ += kGolden); }
  uint64_t state_ = 0;
};

}  // namespace millrace::order::detail
