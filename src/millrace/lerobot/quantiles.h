// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exact quantiles in fixed memory, by going over the values several times: each pass counts 16 more bits of those
// values that can still be one of the wanted order statistics. float32 takes two passes, float64 four. A
// dimension takes 256 KiB in the first pass, and in later ones that at most for each value that is wanted.
// For one thread.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::lerobot {

// The order statistics of one dimension. NaN is greater than every number.
class QuantileSelect {
 public:
  // `singles`: the values are taken as float32, for half the passes; exact() says whether all of them were.
  // REQUIRES: 0 <= each of `quantiles` <= 1.
  QuantileSelect(std::span<const double> quantiles, bool singles);

  int passes() const { return singles_ ? 2 : 4; }
  // All values, once in each pass.
  void add(double value) { add(&value, 1, 1); }
  // The same of `count` values, `stride` apart.
  void add(const double* values, size_t count, size_t stride);
  void add(const float* values, size_t count, size_t stride);
  // Behind the last value of a pass.
  void end_pass();
  // Behind the last pass: as numpy.quantile with its default, linear; NaN of no values.
  std::vector<double> results() const;
  // Whether each value that was added is a float32, or none has to be.
  bool exact() const { return exact_; }

 private:
  struct Wanted {
    int64_t rank = 0;     // among the values that share the prefix
    uint64_t prefix = 0;  // of the value's bits, as far as they are known
    int64_t values = 0;   // that share it
  };
  // The next 16 bits of the values that share a prefix: how often each occurs, or, of few values, a list.
  struct Counts {
    uint64_t prefix = 0;
    std::vector<uint32_t> of;  // [65536]; empty: there is a list
    std::vector<uint16_t> few;

    void add(size_t digit) {
      if (of.empty()) return few.push_back(static_cast<uint16_t>(digit));
      ++of[digit];
    }
    // Narrows `wanted` by these bits. REQUIRES: `few` is sorted.
    void narrow(Wanted& wanted) const;
  };
  template <class Bits, class Number>
  void add_all(const Number* values, size_t count, size_t stride);
  template <class Bits>
  void count_key(Bits key, int shift);
  double value_of(uint64_t key) const;

  const std::vector<double> quantiles_;
  const bool singles_;
  bool exact_ = true;
  int pass_ = 0;
  int64_t count_ = 0;
  std::vector<Wanted> wanted_;  // two for each quantile: the value below and the one above
  std::vector<Counts> counts_;  // by prefix
  // For the second pass: 1 + the place of each prefix in counts_; 0: the prefix is not counted.
  std::vector<uint8_t> places_;  // [65536]
};

}  // namespace millrace::lerobot
