// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps the numbers of one data file between passes, within a budget that files share. Stores them as float32 if that
// is exact for all values of a feature, else as float64. Private to this room. For one thread; the budget is shared by
// threads.

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::lerobot {

class KeptNumbers {
 public:
  KeptNumbers() = default;
  // `budget`, in bytes, must outlive it.
  KeptNumbers(size_t features, std::atomic<int64_t>& budget) : budget_(&budget), features_(features) {}

  // Adds numbers of a feature. Drops all numbers of the file if they do not fit the budget; is_whole() is then false.
  void add(size_t feature, std::span<const double> numbers);
  bool is_whole() const { return budget_ != nullptr; }
  // Calls visit(const float* or const double*, count) with all numbers of a feature. REQUIRES: is_whole().
  template <class Visit>
  void visit(size_t feature, const Visit& visit) const {
    const OfFeature& here = features_[feature];
    if (!here.singles.empty()) visit(here.singles.data(), here.singles.size());
    if (!here.doubles.empty()) visit(here.doubles.data(), here.doubles.size());
  }

 private:
  struct OfFeature {  // only one of the two is filled
    std::vector<float> singles;
    std::vector<double> doubles;
  };
  bool reserve(int64_t bytes);
  void widen(OfFeature& feature);

  std::atomic<int64_t>* budget_ = nullptr;  // null: nothing is kept
  int64_t bytes_ = 0;
  std::vector<OfFeature> features_;
};

}  // namespace millrace::lerobot
