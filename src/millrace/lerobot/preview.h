// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prepares one episode for display on a page: the frames of each camera, and its states and actions row by row.
// Decodes nothing. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

struct Preview {
  struct Frame {
    std::string camera, file;  // below the dataset's root
    int64_t row = 0;           // row of the episode
    int64_t frame = 0;         // frame of the file, counted from 0 in display order
  };
  struct Series {
    std::string feature;
    std::vector<std::string> names;           // [dim]; empty where info.json names none
    std::vector<std::vector<double>> values;  // [dim][rows of the preview]; a null is NaN
  };

  int64_t episode = 0, length = 0;
  std::vector<Frame> frames;
  std::vector<int64_t> rows;  // rows of the episode with values in `series`: all, or every n-th
  std::vector<Series> series;
  std::vector<std::string> not_shown;  // omitted parts, each with the reason
};

// Previews the episode with this index; without an index, the first one that has frames. `not_shown` reports damage.
// Errors: invalid_argument (no such episode, or none has frames), those of reading, except corruption, not_found and
// unsupported.
[[nodiscard]] Result<Preview> preview_episode(const Dataset& dataset, std::optional<int64_t> index);

}  // namespace millrace::lerobot
