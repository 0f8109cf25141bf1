// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/kept_numbers.h"

#include <algorithm>

namespace millrace::lerobot {
namespace {

bool all_single(std::span<const double> numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](double value) { return static_cast<double>(static_cast<float>(value)) == value; });
}

}  // namespace

bool KeptNumbers::reserve(int64_t bytes) {
  if (budget_->fetch_sub(bytes) >= bytes) {
    bytes_ += bytes;
    return true;
  }
  budget_->fetch_add(bytes + bytes_);
  budget_ = nullptr;
  bytes_ = 0;
  features_.clear();
  return false;
}

void KeptNumbers::widen(OfFeature& feature) {
  if (!reserve(static_cast<int64_t>(feature.singles.size() * sizeof(float)))) return;
  feature.doubles.assign(feature.singles.begin(), feature.singles.end());
  feature.singles = {};
}

void KeptNumbers::add(size_t feature, std::span<const double> numbers) {
  if (!is_whole()) return;
  const bool single = features_[feature].doubles.empty() && all_single(numbers);
  if (!reserve(static_cast<int64_t>(numbers.size() * (single ? sizeof(float) : sizeof(double))))) return;
  OfFeature& here = features_[feature];
  if (single) {
    for (const double value : numbers) here.singles.push_back(static_cast<float>(value));
    return;
  }
  if (!here.singles.empty()) widen(here);
  if (!is_whole()) return;
  here.doubles.insert(here.doubles.end(), numbers.begin(), numbers.end());
}

}  // namespace millrace::lerobot
