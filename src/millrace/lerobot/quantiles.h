// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes exact quantiles in fixed memory by several passes over the values. Each pass counts 16 more bits of the
// values that may still be one of the wanted order statistics. float32 takes two passes, float64 four. The first pass
// takes 256 KiB per dimension. Later passes take at most 256 KiB for each wanted value. For one thread.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::lerobot {

// Selects the order statistics of one dimension. NaN is greater than every number.
class QuantileSelect {
 public:
  // `singles`: values are taken as float32, which halves the number of passes. exact() then tells whether all values
  // were float32. REQUIRES: 0 <= each of `quantiles` <= 1.
  QuantileSelect(std::span<const double> quantiles, bool singles);

  int passes() const { return singles_ ? 2 : 4; }
  // Adds a value. Each pass must add all values once.
  void add(double value) { add(&value, 1, 1); }
  // Adds `count` values that are `stride` apart.
  void add(const double* values, size_t count, size_t stride);
  void add(const float* values, size_t count, size_t stride);
  // Ends a pass. Call it after the last value of the pass.
  void end_pass();
  // Returns the quantiles as numpy.quantile does by default (linear); NaN if there are no values. Call it after the
  // last pass.
  std::vector<double> results() const;
  // Whether each added value is exactly a float32. Always true without `singles`.
  bool exact() const { return exact_; }

 private:
  struct Wanted {
    int64_t rank = 0;     // rank among the values with this prefix
    uint64_t prefix = 0;  // the leading bits of the value known so far
    int64_t values = 0;   // number of values with this prefix
  };
  // The next 16 bits of the values that share a prefix: a count of each bit pattern, or a plain list if the values are
  // few.
  struct Counts {
    uint64_t prefix = 0;
    std::vector<uint32_t> of;  // [65536]; empty: `few` is used
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
  std::vector<Counts> counts_;  // sorted by prefix
  // For the second pass: 1 + the position of each prefix in counts_; 0 if the prefix is not counted.
  std::vector<uint8_t> places_;  // [65536]
};

}  // namespace millrace::lerobot
