// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/data_files.h"

#include <map>

namespace millrace::lerobot {

std::vector<DataFile> data_files(const Dataset& dataset) {
  std::vector<DataFile> files;
  std::map<std::string, size_t, std::less<>> by_path;
  int64_t position = 0, index = 0;
  for (const Episode& episode : dataset.episodes) {
    if (const auto path = dataset.data_file(episode)) {
      const auto [found, is_new] = by_path.emplace(*path, files.size());
      if (is_new) files.push_back({.path = *path, .episodes = {}});
      DataFile& file = files[found->second];
      file.episodes.push_back({&episode, position, file.rows, index});
      file.rows += episode.length;
    }
    ++position;
    index += episode.length;
  }
  return files;
}

}  // namespace millrace::lerobot
