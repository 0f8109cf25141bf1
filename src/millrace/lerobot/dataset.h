// SPDX-License-Identifier: Apache-2.0
#pragma once

// A robot dataset as its metadata describe it: LeRobot's v2.0, v2.1 and v3.0, and GR00T's flavour of v2.x. Plain
// values. read_dataset (validate.h) reads them without looking at data or videos.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/lerobot/path_template.h"
#include "millrace/lerobot/tree.h"

namespace millrace::lerobot {

enum class Version { kUnknown, kV20, kV21, kV30 };
// Returns "v2.1", as in codebase_version; "unknown" for kUnknown.
std::string_view version_text(Version version);
// Parses "v2.1" or "2.1".
Version parse_version(std::string_view text);
inline bool is_v2(Version version) {
  return version == Version::kV20 || version == Version::kV21;
}

// One entry of `features` in info.json.
struct Feature {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;      // as declared; for pictures by convention height, width, channels
  bool has_names = false;          // names is neither null nor missing
  std::vector<std::string> names;  // flattened; empty if their nesting is not understood

  // Facts of a camera from `info` or `video_info`. Empty: not stated.
  struct Video {
    std::string key;  // "info" or "video_info"; empty: neither is there
    std::optional<double> fps;
    std::optional<std::string> codec, pixel_format;
    std::optional<int64_t> height, width;
    bool is_depth = false;
    std::vector<std::string> missing_depth_keys;
  } video;
  std::optional<double> fps;

  bool is_video() const { return dtype == "video"; }
  bool is_picture() const { return dtype == "video" || dtype == "image"; }
  // Whether its column holds numbers: it is no picture, text or language.
  bool is_numeric() const { return !is_picture() && dtype != "string" && dtype != "language"; }
  bool is_float() const { return dtype.starts_with("float"); }
  // Whether it is one of timestamp, frame_index, episode_index, index, task_index.
  bool is_bookkeeping() const;
  // Whether policies learn from it: action..., observation.state...
  bool is_learned() const;
  int64_t size() const;  // length of the vector; 1 for a scalar
  // Returns height and width as `names` and the shape say; nothing if that cannot be decided.
  std::optional<std::pair<int64_t, int64_t>> picture_size() const;
};

struct Info {
  Version version = Version::kUnknown;
  std::string version_text, robot_type;
  std::string storage_format;  // "lance", ...; usually not said
  std::optional<double> fps;
  std::optional<int64_t> total_episodes, total_frames, total_tasks, total_videos, total_chunks, chunks_size;
  std::optional<double> data_file_mb, video_file_mb;
  std::vector<std::pair<std::string, std::string>> splits;
  std::optional<PathTemplate> data_path, video_path;
  std::vector<Feature> features;

  const Feature* find(std::string_view name) const;
  std::vector<const Feature*> cameras() const;  // features with dtype video
  double frame_rate() const { return fps && *fps > 0 ? *fps : 0; }
};

// The place of a camera's frames of an episode: v3.0 only.
struct VideoSpan {
  int64_t chunk = 0, file = 0;
  double from_s = 0, to_s = 0;  // times in the file
};

struct Episode {
  int64_t index = -1;  // as in its line or row
  int64_t length = 0;
  std::vector<std::string> tasks;
  Place place;  // its line or row
  // v3.0 only:
  int64_t data_chunk = 0, data_file = 0, from_row = 0, to_row = 0;
  std::vector<VideoSpan> videos;  // one per camera, in the order of Info::cameras(); empty if columns are missing
};

struct Task {
  int64_t index = -1;
  std::string text;
  Place place;
};

// Statistics of a feature, over the dataset or over an episode, flattened. An empty list: the statistic is not there.
// NaN stays NaN.
struct FeatureStats {
  std::map<std::string, std::vector<double>, std::less<>> values;  // "mean", "std", "min", "max", "count", "q01", ...
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes;

  const std::vector<double>* find(std::string_view name) const;
};
using StatsByFeature = std::map<std::string, FeatureStats, std::less<>>;

// The statistics of one feature in each episode that has them: [episodes, dim], float32.
struct EpisodeStats {
  int64_t dim = 0;
  std::vector<float> mean, std, min, max;
};

struct Dataset {
  Tree tree;
  Info info;
  std::vector<Episode> episodes;
  std::vector<Task> tasks;
  std::string tasks_file;
  std::optional<StatsByFeature> stats;                          // meta/stats.json
  std::map<std::string, EpisodeStats, std::less<>> by_episode;  // learned features only: v2.1, v3.0
  std::map<std::string, int64_t, std::less<>> counted;          // the sum of `count` over the episodes
  int64_t episodes_with_stats = 0;

  int64_t frames() const;  // the sum of the lengths
  // Returns the path below the root; nothing if a template is missing or wrong. For v3.0, `chunk` and `file` are those
  // of the episode.
  std::optional<std::string> data_file(const Episode& episode) const;
  std::optional<std::string> video_file(const Episode& episode, size_t camera, std::string_view key) const;
};

// Returns the template that LeRobot writes for a version.
std::string_view usual_template(Version version, bool is_video);
// Returns the path of an episode's file by the template in `info`; nothing if the template is missing or wrong. `span`
// and `camera` are for videos.
std::optional<std::string> template_path(const Info& info, const Episode& episode, const VideoSpan* span,
                                         std::string_view camera, bool is_video);

}  // namespace millrace::lerobot
