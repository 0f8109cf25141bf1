// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/best_fit.h"

#include <algorithm>
#include <set>
#include <utility>

namespace millrace::order {

WindowBins best_fit(std::span<const uint32_t> lengths, int64_t seq_len) {
  std::vector<std::vector<uint32_t>> bins;
  std::set<std::pair<int64_t, size_t>> spaces;  // (free tokens in the last row, bin), of bins with free tokens
  WindowBins result;
  const auto open_bin = [&](uint32_t sample) {
    const int64_t rows = (lengths[sample] + seq_len - 1) / seq_len;
    const int64_t space = rows * seq_len - lengths[sample];
    if (space > 0) spaces.emplace(space, bins.size());
    bins.push_back({sample});
    result.rows += rows;
  };
  std::vector<uint32_t> whole;  // that fit into a row
  for (uint32_t sample = 0; sample < lengths.size(); ++sample) {
    if (lengths[sample] > seq_len) open_bin(sample);
    if (lengths[sample] > 0 && lengths[sample] <= seq_len) whole.push_back(sample);
  }
  std::ranges::stable_sort(whole, [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  for (const uint32_t sample : whole) {
    const auto fits = spaces.lower_bound({lengths[sample], 0});
    if (fits == spaces.end()) {
      open_bin(sample);
      continue;
    }
    const auto [space, bin] = *fits;
    spaces.erase(fits);
    if (space > lengths[sample]) spaces.emplace(space - lengths[sample], bin);
    bins[bin].push_back(sample);
  }
  for (const auto& bin : bins) {
    result.samples.insert(result.samples.end(), bin.begin(), bin.end());
    result.ends.push_back(static_cast<uint32_t>(result.samples.size()));
  }
  return result;
}

}  // namespace millrace::order
