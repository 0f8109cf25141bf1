// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/preview.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/formats/columns.h"
#include "millrace/lerobot/data_files.h"
#include "millrace/lerobot/frame_probe.h"
#include "millrace/lerobot/numbers.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kFramesOfCamera = 8;  // as many as stand in a line of a page
constexpr int64_t kMostRows = 500;      // points of a curve; a screen shows no more
constexpr int64_t kMostDims = 4096;     // of a feature; shapes come from others
constexpr int64_t kRowsOfBatch = 4096;

Result<size_t> choose_previewed(const Dataset& dataset, std::optional<int64_t> index) {
  const auto& episodes = dataset.episodes;
  const auto found = std::ranges::find_if(
      episodes, [&](const Episode& episode) { return index ? episode.index == *index : episode.length > 0; });
  if (found != episodes.end()) return static_cast<size_t>(found - episodes.begin());
  if (!index) return fail(ErrorCode::kInvalidArgument, "no episode has frames");
  return fail(ErrorCode::kInvalidArgument, "there is no episode {}; it has {}", *index, episodes.size());
}

void choose_frames(const Dataset& dataset, const Episode& episode, Preview& out) {
  const auto cameras = dataset.info.cameras();
  for (size_t i = 0; i < cameras.size(); ++i) {
    const std::string& name = cameras[i]->name;
    const auto file = dataset.video_file(episode, i, name);
    if (!file || dataset.tree.find(*file) == nullptr) {
      out.not_shown.push_back(fmt::format("{}: there is no video of episode {}", name, episode.index));
      continue;
    }
    // Frames are integers: see feed.h.
    const bool is_joined = i < episode.videos.size();
    const auto first =
        is_joined ? static_cast<int64_t>(std::llround(episode.videos[i].from_s * dataset.info.frame_rate())) : 0;
    for (const int64_t row : frames_to_probe(episode.length, kFramesOfCamera)) {
      out.frames.push_back({name, *file, row, first + row});
    }
  }
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_picture() || feature.is_video()) continue;
    out.not_shown.push_back(feature.name + ": its pictures are inside of tables");
  }
}

// Reads the rows of the preview, and none behind the last one.
class SeriesReader {
 public:
  SeriesReader(const EpisodeRows& where, Preview& out) : where_(where), out_(out) {}

  Status read(const Tree& tree, const std::string& path, const std::vector<const Feature*>& features) {
    ASSIGN_OR_RETURN(const auto file, tree.open(path));
    ASSIGN_OR_RETURN(const auto table, formats::open_columns(*file));
    std::vector<std::string> columns;
    for (const Feature* feature : features) {
      if (table->footer().find(feature->name) == nullptr) {
        out_.not_shown.push_back(fmt::format("{}: {} has no such column", feature->name, path));
        continue;
      }
      columns.push_back(feature->name);
      Preview::Series series{.feature = feature->name, .names = feature->names};
      series.values.resize(static_cast<size_t>(feature->size()));
      if (std::ssize(series.names) != feature->size()) series.names.clear();
      out_.series.push_back(std::move(series));
    }
    if (columns.empty()) return {};
    bool done = false;
    const Status scanned = table->scan(columns, kRowsOfBatch, [&](int64_t first, auto values) -> Status {
      add(first, values);
      done = next_ == out_.rows.size();
      if (done) return fail(ErrorCode::kCancelled, "enough");  // an error is what ends a scan
      return {};
    });
    if (done) return {};
    RETURN_IF_ERROR(scanned);
    return fail(ErrorCode::kCorruption, "it has {} rows, and episode {} needs {}", table->footer().rows,
                where_.episode->index, where_.first_row + where_.episode->length);
  }

 private:
  void add(int64_t first, std::span<const formats::ColumnValues> values) {
    for (; next_ < out_.rows.size(); ++next_) {
      const int64_t row = where_.first_row + out_.rows[next_] - first;
      if (row >= values.front().rows) return;
      for (size_t column = 0; column < values.size(); ++column) {
        numbers_.clear();
        append_numbers(values[column], row, numbers_);
        auto& dims = out_.series[column].values;
        numbers_.resize(dims.size(), std::nan(""));
        for (size_t dim = 0; dim < dims.size(); ++dim) dims[dim].push_back(numbers_[dim]);
      }
    }
  }

  const EpisodeRows& where_;
  Preview& out_;
  size_t next_ = 0;  // in out_.rows
  std::vector<double> numbers_;
};

Status read_series(const Dataset& dataset, size_t number, Preview& out) {
  std::vector<const Feature*> features;
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_learned() || !feature.is_numeric() || feature.size() < 1) continue;
    if (feature.size() <= kMostDims) {
      features.push_back(&feature);
    } else {
      out.not_shown.push_back(fmt::format("{}: {} numbers in a row are too many", feature.name, feature.size()));
    }
  }
  if (features.empty()) return {};
  const int64_t step = (out.length - 1) / kMostRows + 1;
  for (int64_t row = 0; row < out.length; row += step) out.rows.push_back(row);
  for (const DataFile& file : data_files(dataset)) {
    const auto where = std::ranges::find(file.episodes, static_cast<int64_t>(number), &EpisodeRows::position);
    if (where == file.episodes.end()) continue;
    const Status read = SeriesReader(*where, out).read(dataset.tree, file.path, features);
    if (read) return {};
    out.series.clear();
    out.rows.clear();
    // What is wrong with the dataset is shown; what hinders this program is not hidden.
    const ErrorCode code = read.error().code();
    if (code != ErrorCode::kCorruption && code != ErrorCode::kNotFound && code != ErrorCode::kUnsupported) return read;
    out.not_shown.push_back(fmt::format("{}: {}", file.path, read.error().message()));
    return {};
  }
  out.rows.clear();
  out.not_shown.push_back(fmt::format("states and actions: no data file of episode {} is named", out.episode));
  return {};
}

}  // namespace

Result<Preview> preview_episode(const Dataset& dataset, std::optional<int64_t> index) {
  ASSIGN_OR_RETURN(const size_t number, choose_previewed(dataset, index));
  const Episode& episode = dataset.episodes[number];
  Preview out;
  out.episode = episode.index;
  out.length = episode.length;
  choose_frames(dataset, episode, out);
  RETURN_IF_ERROR(read_series(dataset, number, out));
  return out;
}

}  // namespace millrace::lerobot
