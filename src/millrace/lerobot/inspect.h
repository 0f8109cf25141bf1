// SPDX-License-Identifier: Apache-2.0
#pragma once

// Describes a robot dataset by its metadata and the sizes of its files. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/preview.h"

namespace millrace::lerobot {

struct Inspection {
  struct Camera {
    std::string key, codec, pixel_format;  // codec and pixel_format as in info.json; empty: not stated
    int64_t height = 0, width = 0;         // 0: not declared
    bool is_depth = false;
    int64_t files = 0, bytes = 0;
  };
  struct TaskCount {
    int64_t index = 0;
    std::string text;
    int64_t episodes = 0;  // number of episodes with this task
  };
  struct LengthBin {
    int64_t from = 0, to = 0;  // frames, `to` not included
    int64_t episodes = 0;
  };
  struct FeatureRange {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::optional<double> min, max;  // over all dimensions, from meta/stats.json or the episodes' statistics
  };

  std::string version, robot_type;
  bool is_groot = false;                 // meta/modality.json is there
  std::vector<std::string> explanation;  // sentences about a tree that mixes versions; else empty
  double fps = 0;
  int64_t episodes = 0, frames = 0;
  int64_t shortest = 0, median = 0, longest = 0;  // in frames
  int64_t data_bytes = 0, video_bytes = 0, meta_bytes = 0, other_bytes = 0, files = 0;
  std::vector<LengthBin> lengths;  // bins of equal width, shortest to longest; none without episodes
  std::vector<Camera> cameras;
  std::vector<TaskCount> tasks;
  std::vector<FeatureRange> features;
  FindingCounts findings;          // found while reading the metadata
  std::optional<Preview> preview;  // if requested, and an episode has frames

  double hours() const { return fps > 0 ? static_cast<double>(frames) / fps / 3600 : 0; }
};

struct InspectOptions {
  bool preview = false;            // also reads the rows of an episode
  std::optional<int64_t> episode;  // index of the episode to preview; nothing: the first with frames
};

// Errors: those of read_dataset; corruption (info.json is missing or no JSON, so nothing is known), those of
// preview_episode.
[[nodiscard]] Result<Inspection> inspect_dataset(const Location& root, const InspectOptions& options = {});

}  // namespace millrace::lerobot
