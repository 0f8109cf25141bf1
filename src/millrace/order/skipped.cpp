// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/skipped.h"

#include <algorithm>

namespace millrace::order {

bool is_skipped(std::span<const SkippedSteps> skipped, uint64_t epoch, int64_t position) {
  return std::ranges::any_of(skipped, [&](const SkippedSteps& range) {
    return range.epoch == epoch && range.begin <= position && position < range.end;
  });
}

void add_skipped(std::vector<SkippedSteps>& skipped, const SkippedSteps& more) {
  if (more.begin >= more.end) return;
  SkippedSteps joined = more;
  std::erase_if(skipped, [&](const SkippedSteps& range) {
    if (range.epoch != joined.epoch || range.end < joined.begin || joined.end < range.begin) return false;
    joined.begin = std::min(joined.begin, range.begin);
    joined.end = std::max(joined.end, range.end);
    return true;
  });
  const auto before = [](const SkippedSteps& a, const SkippedSteps& b) {
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.begin < b.begin;
  };
  skipped.insert(std::upper_bound(skipped.begin(), skipped.end(), joined, before), joined);
}

int64_t count_skipped(std::span<const SkippedSteps> skipped, uint64_t epoch, int64_t stride, int64_t end) {
  int64_t count = 0;
  const auto multiples = [&](int64_t below) { return below / stride + (below % stride != 0); };
  for (const SkippedSteps& range : skipped) {
    if (range.epoch != epoch) continue;
    count += std::max<int64_t>(0, multiples(std::min(range.end, end)) - multiples(range.begin));
  }
  return count;
}

}  // namespace millrace::order
