// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the differences between two robot datasets of any versions. Compares their rows and frames, episode by
// episode. Ignores the version, and the paths and sizes of files.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {

struct DiffOptions {
  bool frames = false;  // also compare decoded frames of videos and pixels of pictures inside data files
  int threads = 0;      // 0: as threads_for()
  Progress* progress = nullptr;
  std::stop_token stop;
};

struct DatasetDiff {
  struct Side {
    std::string url, version;
    int64_t episodes = 0, frames = 0;
  };
  // A field of info.json. `a` or `b` is empty where the field is missing.
  struct Fact {
    std::string key;
    std::optional<std::string> a, b;
  };
  // A task text whose task_index differs, or that only one dataset has.
  struct Task {
    std::string task;
    std::optional<int64_t> a, b;
  };
  // The lengths of an episode. `a` or `b` is empty where the episode is missing.
  struct Episode {
    int64_t episode = 0;
    std::optional<int64_t> a, b;
    bool other_tasks = false;
  };
  // A feature that both have. `largest` is the largest difference of two numbers; empty if only NaN, texts or lengths
  // differ.
  struct Feature {
    std::string name;
    int64_t rows = 0, differ = 0;
    int64_t first_episode = -1, first_row = -1;  // the first row that differs, counted in its episode
    std::optional<double> largest;
  };
  // A statistic of the dataset or of episodes that differs.
  struct Statistic {
    std::string feature, statistic;
    bool of_episodes = false;
    int64_t differ = 0;  // episodes that differ; 1 for the dataset
    int64_t first_episode = -1;
    std::optional<double> largest;
  };
  // A camera that both have. `largest` is the largest difference of two RGB bytes.
  struct Camera {
    std::string name;
    int64_t frames = 0, decoded = 0, differ = 0;
    int64_t first_episode = -1, first_frame = -1;
    int64_t largest = 0;
    std::string size_a, size_b;  // set if the sizes differ; all frames then count as different
  };

  Side a, b;
  std::vector<Fact> info;
  std::vector<Task> tasks;
  std::vector<Episode> episodes;
  std::vector<Feature> features;  // all that were compared, equal or not
  std::vector<Statistic> stats;
  std::vector<Camera> cameras;            // all that were compared, equal or not
  std::vector<std::string> not_compared;  // sentences

  int64_t differences() const;
};

// Errors: those of Source::open for both; corruption (a damaged file, or one with fewer rows or frames than meta/
// says), unsupported (a library is missing), cancelled, those of reading.
[[nodiscard]] Result<DatasetDiff> diff_datasets(const Location& a, const Location& b, const DiffOptions& options);

// Returns the differences as one JSON object, in the order of the struct.
std::string diff_json(const DatasetDiff& diff);

}  // namespace millrace::lerobot
