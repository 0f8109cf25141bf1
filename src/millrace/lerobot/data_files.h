// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which rows of which data file belong to which episode, by the metadata alone. Pure functions; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// Where the rows of an episode lie in its file.
struct EpisodeRows {
  const Episode* episode = nullptr;
  int64_t position = 0;     // in Dataset::episodes
  int64_t first_row = 0;    // in the file
  int64_t first_index = 0;  // the value of `index` there
};

struct DataFile {
  std::string path;
  std::vector<EpisodeRows> episodes;  // in the order of their rows
  int64_t rows = 0;                   // of all its episodes
};

// The files that episodes name, in the order of their first episode, whether they exist or not. The episodes of a file
// follow each other from its first row on, as LeRobot's readers take them. `dataset` must outlive the result.
std::vector<DataFile> data_files(const Dataset& dataset);

// The timestamp of a frame as LeRobot writes it: a float32. REQUIRES: fps > 0.
inline double frame_time(int64_t frame, double fps) {
  return static_cast<double>(static_cast<float>(static_cast<double>(frame) / fps));
}

}  // namespace millrace::lerobot
