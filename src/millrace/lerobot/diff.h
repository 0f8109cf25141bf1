// SPDX-License-Identifier: Apache-2.0
#pragma once

// What differs between two robot datasets of any versions. Compared is what they hold and not how it lies in files:
// rows and frames episode by episode. The version, paths and sizes of files are no differences.

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
  bool frames = false;  // also decoded frames of videos, and pixels of pictures inside of data files
  int threads = 0;      // 0: as threads_for()
  Progress* progress = nullptr;
  std::stop_token stop;
};

struct DatasetDiff {
  struct Side {
    std::string url, version;
    int64_t episodes = 0, frames = 0;
  };
  // A field of info.json; nothing: the field is missing.
  struct Fact {
    std::string key;
    std::optional<std::string> a, b;
  };
  // A text that has another task_index, or is in one of them only.
  struct Task {
    std::string task;
    std::optional<int64_t> a, b;
  };
  // Lengths; nothing: not there.
  struct Episode {
    int64_t episode = 0;
    std::optional<int64_t> a, b;
    bool other_tasks = false;
  };
  // A feature that both have. `largest` is of two numbers; nothing where only NaN, texts or lengths differ.
  struct Feature {
    std::string name;
    int64_t rows = 0, differ = 0;
    int64_t first_episode = -1, first_row = -1;  // of those that differ; the row counts in the episode
    std::optional<double> largest;
  };
  // A statistic that differs, of the dataset or of episodes.
  struct Statistic {
    std::string feature, statistic;
    bool of_episodes = false;
    int64_t differ = 0;  // episodes; 1 of the dataset
    int64_t first_episode = -1;
    std::optional<double> largest;
  };
  // A camera that both have. `largest` is of the bytes of RGB.
  struct Camera {
    std::string name;
    int64_t frames = 0, decoded = 0, differ = 0;
    int64_t first_episode = -1, first_frame = -1;
    int64_t largest = 0;
    std::string size_a, size_b;  // where they differ; then all frames do
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

// As one object of JSON, in the order of the struct.
std::string diff_json(const DatasetDiff& diff);

}  // namespace millrace::lerobot
