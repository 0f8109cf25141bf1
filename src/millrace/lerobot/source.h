// SPDX-License-Identifier: Apache-2.0
#pragma once

// A dataset that others are made from: what its metadata say, and where the rows and frames of its episodes are.
// Private to this room. Thread-safe after open().

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
  Json info;                                                // meta/info.json as it is there
  Json modality;                                            // meta/modality.json; null where there is none
  std::vector<std::string> tasks;                           // by task_index
  std::map<std::string, int64_t, std::less<>> first_rows;   // by data file: dataset_from_index of its first row
  std::map<std::string, int64_t, std::less<>> file_frames;  // by data or video file: the frames of its episodes

  // Errors: as of read_dataset; corruption (a rule of error level is broken in meta/: the message names it).
  [[nodiscard]] static Result<std::unique_ptr<Source>> open(const Location& root,
                                                            StatsOfEpisodes stats = StatsOfEpisodes::kRead);
  // The same of files that were listed before.
  [[nodiscard]] static Result<std::unique_ptr<Source>> open(Tree tree, StatsOfEpisodes stats);

  const std::string& url() const { return dataset.tree.root().url; }
  bool is_v3() const { return dataset.info.version == Version::kV30; }
  const Episode& episode(size_t number) const { return dataset.episodes[number]; }

  std::string data_path(size_t episode) const;
  int64_t first_row(size_t episode) const;  // in that file
  // `camera` is a place in dataset.info.cameras().
  std::string video_path(size_t episode, size_t camera) const;
  // The place of a camera in dataset.info.cameras(). REQUIRES: there is one of that name.
  size_t camera(std::string_view name) const;

  // The episode's share of a file that several episodes may be in.
  double bytes_in(const std::string& path, size_t episode) const;
};

// The first finding of error level whose rule is not in `known`, as corruption. `whose` begins the message.
[[nodiscard]] Status refuse_errors(const std::vector<Finding>& findings, std::string_view whose,
                                   const std::vector<std::string>& known);
// The rules of error level that are broken, each once, in order.
std::vector<std::string> rules_in_error(const std::vector<Finding>& findings);

}  // namespace millrace::lerobot
