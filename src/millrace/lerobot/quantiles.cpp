// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/quantiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

namespace millrace::lerobot {
namespace {

constexpr int kDigitBits = 16;
constexpr size_t kDigits = size_t{1} << kDigitBits;
// A list of this length takes a quarter of the memory of the counts, and most lists are far shorter.
constexpr int64_t kFewValues = 1 << 15;

// Unsigned integers in the order of the numbers: negative ones upside down, below the others.
template <class Bits>
Bits in_order(Bits bits) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  return (bits & kSign) != 0 ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | kSign);
}

template <class Bits>
Bits out_of_order(Bits bits) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  return (bits & kSign) != 0 ? static_cast<Bits>(bits & ~kSign) : static_cast<Bits>(~bits);
}

// The bits of a number, as an integer that sorts as the number does.
template <class Bits, class Number>
Bits key_of(Number value) {
  if (std::isnan(value)) return std::numeric_limits<Bits>::max();
  if (value == 0) value = 0;  // -0.0 is no smaller
  if constexpr (sizeof(Bits) == sizeof(float)) {
    return in_order(std::bit_cast<Bits>(static_cast<float>(value)));
  } else {
    return in_order(std::bit_cast<Bits>(static_cast<double>(value)));
  }
}

// As NumPy: from whichever end is nearer, so that both ends are exact.
double between(double low, double high, double t) {
  if (t == 0) return low;  // also of an infinity
  return t < 0.5 ? low + (high - low) * t : high - (high - low) * (1 - t);
}

}  // namespace

QuantileSelect::QuantileSelect(std::span<const double> quantiles, bool singles)
    : quantiles_(quantiles.begin(), quantiles.end()), singles_(singles) {
  counts_.push_back({0, std::vector<uint32_t>(kDigits)});
}

double QuantileSelect::value_of(uint64_t key) const {
  if (singles_) return static_cast<double>(std::bit_cast<float>(out_of_order(static_cast<uint32_t>(key))));
  return std::bit_cast<double>(out_of_order(key));
}

template <class Bits>
void QuantileSelect::count_key(Bits key, int shift) {
  const auto digit = static_cast<size_t>(key >> shift & (kDigits - 1));
  if (pass_ == 0) {
    ++counts_.front().of[digit];
    return;
  }
  const uint64_t prefix = static_cast<uint64_t>(key) >> (shift + kDigitBits);
  if (pass_ == 1) {
    if (const uint8_t place = places_[prefix]; place != 0) counts_[place - 1U].add(digit);
    return;
  }
  const auto counts = std::lower_bound(counts_.begin(), counts_.end(), prefix,
                                       [](const Counts& each, uint64_t wanted) { return each.prefix < wanted; });
  if (counts != counts_.end() && counts->prefix == prefix) counts->add(digit);
}

template <class Bits, class Number>
void QuantileSelect::add_all(const Number* values, size_t count, size_t stride) {
  const int shift = kDigitBits * (passes() - 1 - pass_);
  if (pass_ == 0) count_ += static_cast<int64_t>(count);
  for (size_t i = 0; i < count; ++i, values += stride) count_key<Bits>(key_of<Bits>(*values), shift);
}

void QuantileSelect::add(const double* values, size_t count, size_t stride) {
  if (!singles_) return add_all<uint64_t>(values, count, stride);
  for (size_t i = 0; i < count && exact_; ++i) {
    const double value = values[i * stride];
    exact_ = static_cast<double>(static_cast<float>(value)) == value || std::isnan(value);
  }
  if (exact_) add_all<uint32_t>(values, count, stride);
}

void QuantileSelect::add(const float* values, size_t count, size_t stride) {
  if (singles_) return add_all<uint32_t>(values, count, stride);
  add_all<uint64_t>(values, count, stride);
}

void QuantileSelect::Counts::narrow(Wanted& wanted) const {
  size_t digit = 0;
  if (of.empty()) {
    digit = few[static_cast<size_t>(wanted.rank)];
    const auto same = std::ranges::equal_range(few, static_cast<uint16_t>(digit));
    wanted.rank -= same.begin() - few.begin();
    wanted.values = static_cast<int64_t>(same.size());
  } else {
    while (digit + 1 < kDigits && wanted.rank >= of[digit]) wanted.rank -= of[digit++];
    wanted.values = of[digit];
  }
  wanted.prefix = wanted.prefix << kDigitBits | digit;
}

void QuantileSelect::end_pass() {
  if (pass_ == 0 && count_ > 0) {
    for (const double quantile : quantiles_) {
      const auto below = static_cast<int64_t>(quantile * static_cast<double>(count_ - 1));
      wanted_.push_back({.rank = below});
      wanted_.push_back({.rank = std::min(below + 1, count_ - 1)});
    }
  }
  for (Counts& counts : counts_) std::ranges::sort(counts.few);
  std::map<uint64_t, int64_t> prefixes;  // with the number of their values
  for (Wanted& wanted : wanted_) {
    const auto counts = std::lower_bound(counts_.begin(), counts_.end(), wanted.prefix,
                                         [](const Counts& each, uint64_t prefix) { return each.prefix < prefix; });
    counts->narrow(wanted);
    prefixes[wanted.prefix] = wanted.values;
  }
  counts_.clear();
  places_.clear();
  if (++pass_ == passes()) return;
  if (pass_ == 1) places_.resize(kDigits);
  for (const auto& [prefix, values] : prefixes) {
    counts_.push_back({prefix, std::vector<uint32_t>(values > kFewValues ? kDigits : 0), {}});
    if (pass_ == 1) places_[prefix] = static_cast<uint8_t>(counts_.size());
  }
}

std::vector<double> QuantileSelect::results() const {
  std::vector<double> results;
  for (size_t i = 0; i < quantiles_.size(); ++i) {
    if (count_ == 0) {
      results.push_back(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    const double place = quantiles_[i] * static_cast<double>(count_ - 1);
    results.push_back(
        between(value_of(wanted_[2 * i].prefix), value_of(wanted_[2 * i + 1].prefix), place - std::floor(place)));
  }
  return results;
}

}  // namespace millrace::lerobot
