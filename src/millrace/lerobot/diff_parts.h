// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of diff.h that read rows and frames. Private to this room.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "millrace/lerobot/diff.h"
#include "millrace/lerobot/source.h"

namespace millrace::lerobot {

// The two datasets, and the episodes that both have.
struct DiffSides {
  const Source& a;
  const Source& b;
  const DiffOptions& options;
  std::vector<std::pair<size_t, size_t>> episodes;  // positions in `a` and `b`

  int64_t length(size_t i) const {
    return std::min(a.episode(episodes[i].first).length, b.episode(episodes[i].second).length);
  }
  int64_t number(size_t i) const { return a.episode(episodes[i].first).index; }
};

// Fills `features`.
[[nodiscard]] Status diff_rows(const DiffSides& sides, DatasetDiff& diff);
// Fills `cameras`.
[[nodiscard]] Status diff_frames(const DiffSides& sides, DatasetDiff& diff);

// Returns the largest difference between the bytes of two RGB or RGBA pictures; nothing if their sizes differ.
std::optional<int64_t> largest_difference(std::span<const std::byte> a, std::span<const std::byte> b);

// Keeps the smaller of two positions.
inline void keep_first(int64_t episode, int64_t row, int64_t& first_episode, int64_t& first_row) {
  if (first_episode < 0 || std::pair(episode, row) < std::pair(first_episode, first_row)) {
    first_episode = episode;
    first_row = row;
  }
}

}  // namespace millrace::lerobot
