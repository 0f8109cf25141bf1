// SPDX-License-Identifier: Apache-2.0
#pragma once

// A dataset that other datasets are made from: its metadata, and the places of its episodes' rows and frames. Private
// to this room. Thread-safe after open().

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

inline constexpr const char* kEpisodeStatsFile = "meta/episodes_stats.jsonl";  // v2.1
inline constexpr const char* kModalityFile = "meta/modality.json";             // GR00T

struct Source {
  Dataset dataset;
  Json info;                                                // meta/info.json as stored
  Json modality;                                            // meta/modality.json; null: none
  std::vector<std::string> tasks;                           // by task_index
  std::map<std::string, int64_t, std::less<>> first_rows;   // by data file: dataset_from_index of its first row
  std::map<std::string, int64_t, std::less<>> file_frames;  // by data or video file: number of frames of its episodes

  // Errors: those of read_dataset; corruption (meta/ breaks a rule of error level, which the message names).
  [[nodiscard]] static Result<std::unique_ptr<Source>> open(const Location& root,
                                                            StatsOfEpisodes stats = StatsOfEpisodes::kRead);
  // Opens a dataset whose files were listed before.
  [[nodiscard]] static Result<std::unique_ptr<Source>> open(Tree tree, StatsOfEpisodes stats);

  const std::string& url() const { return dataset.tree.root().url; }
  bool is_v3() const { return dataset.info.version == Version::kV30; }
  const Episode& episode(size_t number) const { return dataset.episodes[number]; }

  std::string data_path(size_t episode) const;
  int64_t first_row(size_t episode) const;  // row in the file data_path()
  // `camera` is a position in dataset.info.cameras().
  std::string video_path(size_t episode, size_t camera) const;
  // Returns the position of a camera in dataset.info.cameras(). REQUIRES: there is a camera of that name.
  size_t camera(std::string_view name) const;

  // Returns the episode's share of the bytes of a file, which other episodes may share.
  double bytes_in(const std::string& path, size_t episode) const;
};

// Returns the first finding of error level whose rule is not in `known`, as a corruption error. `whose` begins the
// message.
[[nodiscard]] Status refuse_errors(const std::vector<Finding>& findings, std::string_view whose,
                                   const std::vector<std::string>& known);
// Returns the broken rules of error level, each once, in order.
std::vector<std::string> rules_in_error(const std::vector<Finding>& findings);

}  // namespace millrace::lerobot
