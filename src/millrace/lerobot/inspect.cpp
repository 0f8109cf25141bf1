// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/validate.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kBins = 20;

void add_lengths(const Dataset& dataset, Inspection& out) {
  std::vector<int64_t> lengths;
  for (const Episode& episode : dataset.episodes) lengths.push_back(episode.length);
  if (lengths.empty()) return;
  std::sort(lengths.begin(), lengths.end());
  out.shortest = lengths.front();
  out.median = lengths[lengths.size() / 2];
  out.longest = lengths.back();
  const int64_t width = (out.longest - out.shortest) / kBins + 1;
  for (int64_t from = out.shortest; from <= out.longest; from += width) out.lengths.push_back({from, from + width, 0});
  for (const int64_t length : lengths) ++out.lengths[static_cast<size_t>((length - out.shortest) / width)].episodes;
}

void add_sizes(const Tree& tree, Inspection& out) {
  for (const TreeFile& file : tree.files()) {
    int64_t& bytes = file.path.starts_with("data/")     ? out.data_bytes
                     : file.path.starts_with("videos/") ? out.video_bytes
                     : file.path.starts_with("meta/")   ? out.meta_bytes
                                                        : out.other_bytes;
    bytes += file.size;
  }
  out.files = static_cast<int64_t>(tree.files().size());
}

void add_cameras(const Dataset& dataset, Inspection& out) {
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_picture()) continue;
    Inspection::Camera camera{.key = feature.name,
                              .codec = feature.video.codec.value_or(""),
                              .pixel_format = feature.video.pixel_format.value_or(""),
                              .is_depth = feature.video.is_depth};
    if (const auto size = feature.picture_size()) std::tie(camera.height, camera.width) = *size;
    for (const TreeFile& file : dataset.tree.below("videos/")) {
      if (file.path.find("/" + feature.name + "/") == std::string::npos) continue;
      ++camera.files;
      camera.bytes += file.size;
    }
    out.cameras.push_back(std::move(camera));
  }
}

void add_tasks(const Dataset& dataset, Inspection& out) {
  std::map<std::string_view, int64_t> episodes;
  for (const Episode& episode : dataset.episodes) {
    for (const std::string& task : episode.tasks) ++episodes[task];
  }
  for (const Task& task : dataset.tasks) {
    const auto found = episodes.find(task.text);
    out.tasks.push_back({task.index, task.text, found == episodes.end() ? 0 : found->second});
  }
}

template <class Values>
void widen(const Values& low, const Values& high, Inspection::FeatureRange& range) {
  for (const auto value : low) {
    if (std::isfinite(value)) range.min = std::min<double>(range.min.value_or(value), value);
  }
  for (const auto value : high) {
    if (std::isfinite(value)) range.max = std::max<double>(range.max.value_or(value), value);
  }
}

void add_features(const Dataset& dataset, Inspection& out) {
  for (const Feature& feature : dataset.info.features) {
    Inspection::FeatureRange range{.name = feature.name, .dtype = feature.dtype, .shape = feature.shape};
    if (dataset.stats) {
      if (const auto found = dataset.stats->find(feature.name); found != dataset.stats->end()) {
        const auto *low = found->second.find("min"), *high = found->second.find("max");
        if (low != nullptr && high != nullptr) widen(*low, *high, range);
      }
    }
    if (const auto found = dataset.by_episode.find(feature.name); !range.min && found != dataset.by_episode.end()) {
      widen(found->second.min, found->second.max, range);
    }
    out.features.push_back(std::move(range));
  }
}

// The data-preparation guide lays the files of v3.0 beside names of v2: no loader reads that.
std::vector<std::string> explain(const Dataset& dataset) {
  const Layout layout = layout_of(dataset.tree);
  std::vector<std::string> lines;
  const bool fits = is_v2(dataset.info.version) ? layout.v3.empty() : layout.v2.empty();
  if (fits) return lines;
  lines.push_back(fmt::format("info.json says {}", dataset.info.version_text));
  if (!layout.v2.empty()) lines.push_back(fmt::format("of v2.x are: {}", fmt::join(layout.v2, ", ")));
  if (!layout.v3.empty()) lines.push_back(fmt::format("of v3.0 are: {}", fmt::join(layout.v3, ", ")));
  if (!dataset.tree.below("meta/episodes/").empty() &&
      dataset.tree.find("meta/episodes/chunk-000/episode_000000.parquet") != nullptr) {
    lines.emplace_back(
        "meta/episodes/chunk-000/episode_000000.parquet is in no version: v2.x has meta/episodes.jsonl, v3.0 has "
        "meta/episodes/chunk-000/file-000.parquet");
  }
  lines.emplace_back(layout.is_mixed() ? "no loader reads such a mixture whole: convert the recordings to one version"
                                       : "the version in info.json is not that of the files");
  return lines;
}

}  // namespace

Result<Inspection> inspect_dataset(const Location& root, const InspectOptions& options) {
  Report report(0);
  ASSIGN_OR_RETURN(const Dataset dataset, read_dataset(root, report));
  std::vector<Finding> findings = report.take();
  if (dataset.info.features.empty()) {
    const std::string why = findings.empty() ? "" : ": " + findings.front().message;
    return fail(ErrorCode::kCorruption, "{}: {} says nothing{}", root.url, kInfoFile, why);
  }
  Inspection out;
  out.version = dataset.info.version_text;
  out.robot_type = dataset.info.robot_type;
  out.is_groot = dataset.tree.find("meta/modality.json") != nullptr;
  out.explanation = explain(dataset);
  out.fps = dataset.info.frame_rate();
  out.episodes = static_cast<int64_t>(dataset.episodes.size());
  out.frames = dataset.frames();
  add_lengths(dataset, out);
  add_sizes(dataset.tree, out);
  add_cameras(dataset, out);
  add_tasks(dataset, out);
  add_features(dataset, out);
  out.findings = count_findings(findings);
  if (options.episode || (options.preview && out.longest > 0)) {
    ASSIGN_OR_RETURN(out.preview, with_context(preview_episode(dataset, options.episode), root.url));
  }
  return out;
}

}  // namespace millrace::lerobot
