// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the rows of each episode in the data files, from the metadata alone. Pure functions; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// The rows of an episode in its file.
struct EpisodeRows {
  const Episode* episode = nullptr;
  int64_t position = 0;     // position in Dataset::episodes
  int64_t first_row = 0;    // the episode's first row in the file
  int64_t first_index = 0;  // the value of `index` in that row
};

struct DataFile {
  std::string path;
  std::vector<EpisodeRows> episodes;  // in the order of their rows
  int64_t rows = 0;                   // rows of all its episodes
};

// Returns the files that episodes name, in the order of their first episode, whether they exist or not. A file's
// episodes follow each other from its first row on, as LeRobot's readers assume. `dataset` must outlive the result.
std::vector<DataFile> data_files(const Dataset& dataset);

// Returns the timestamp of a frame as LeRobot writes it: a float32. REQUIRES: fps > 0.
inline double frame_time(int64_t frame, double fps) {
  return static_cast<double>(static_cast<float>(static_cast<double>(frame) / fps));
}

}  // namespace millrace::lerobot
