// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/picture_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/video/video.h"

namespace millrace::lerobot {
namespace {

struct CameraStats {
  const Feature* feature = nullptr;
  size_t number = 0;                 // among Info::cameras()
  std::vector<ExactStats> episodes;  // each is written by the one thread that reads its file
  Mutex mutex;
  PixelHistogram all GUARDED_BY(mutex);
};

// A video, and the episodes whose frames it holds.
struct SampledVideo {
  CameraStats* camera = nullptr;
  std::string path;
  std::vector<size_t> episodes;  // positions
};

class Sampler {
 public:
  Sampler(const Dataset& dataset, const StatsOptions& options) : dataset_(dataset), options_(options) {}

  Status read(const SampledVideo& file) const {
    ASSIGN_OR_RETURN(const auto reader, dataset_.tree.open(file.path));
    ASSIGN_OR_RETURN(const auto video, video::open_video(*reader, {.stop = options_.stop}));
    for (const size_t position : file.episodes) {
      PixelHistogram histogram;
      RETURN_IF_ERROR(with_context(add_episode(*video, *file.camera, position, histogram),
                                   fmt::format("{}, episode {}", file.path, dataset_.episodes[position].index)));
      if (options_.by_episode) file.camera->episodes[position] = image_stats(histogram);
      MutexLock lock(file.camera->mutex);
      file.camera->all.add(histogram);
    }
    return {};
  }

 private:
  Status add_episode(video::Video& video, const CameraStats& camera, size_t position, PixelHistogram& histogram) const {
    const Episode& episode = dataset_.episodes[position];
    ASSIGN_OR_RETURN(const int64_t begin, first_frame(video, camera, episode));
    const int64_t frames = video.index()->frames();
    if (episode.length <= 0 || begin + episode.length > frames) {
      return fail(ErrorCode::kCorruption, "the video has {} frames, and the episode's are [{}, {})", frames, begin,
                  begin + episode.length);
    }
    const int64_t width = video.info().width, stride = sampled_stride(width, video.info().height);
    std::vector<std::byte> rgb(static_cast<size_t>(video.frame_bytes(video::PixelLayout::kHwc)));
    for (const int64_t frame : sampled_frames(episode.length)) {
      const int64_t number = begin + frame;
      RETURN_IF_ERROR(video.read({&number, 1}, rgb, {.stop = options_.stop}));
      // SAFETY: bytes as unsigned characters.
      histogram.add({reinterpret_cast<const uint8_t*>(rgb.data()), rgb.size()}, width, stride);
    }
    return {};
  }

  Result<int64_t> first_frame(const video::Video& video, const CameraStats& camera, const Episode& episode) const {
    if (dataset_.info.version != Version::kV30) return 0;
    const video::FrameIndex& index = *video.index();
    const double half = index.fps.num > 0 ? 0.5 / index.fps.value() : 0.5;
    return index.frame_near(episode.videos[camera.number].from_s, half);
  }

  const Dataset& dataset_;
  const StatsOptions& options_;
};

// Names what has pictures and cannot be counted.
std::vector<std::unique_ptr<CameraStats>> cameras_of(const Dataset& dataset, bool by_episode,
                                                     std::vector<std::string>& left_out) {
  std::vector<std::unique_ptr<CameraStats>> cameras;
  const auto all = dataset.info.cameras();
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_picture()) continue;
    if (!feature.is_video() || feature.video.is_depth) {
      left_out.push_back(
          fmt::format("{}: {}", feature.name, feature.is_video() ? "a depth camera" : "pictures in the data tables"));
      continue;
    }
    CameraStats& camera = *cameras.emplace_back(std::make_unique<CameraStats>());
    camera.feature = &feature;
    camera.number = static_cast<size_t>(std::ranges::find(all, &feature) - all.begin());
    if (by_episode) camera.episodes.resize(dataset.episodes.size());
  }
  return cameras;
}

Result<std::vector<SampledVideo>> videos_of(const Dataset& dataset, CameraStats& camera) {
  std::vector<SampledVideo> files;
  std::map<std::string, size_t> by_path;
  for (size_t position = 0; position < dataset.episodes.size(); ++position) {
    const Episode& episode = dataset.episodes[position];
    const auto path = dataset.video_file(episode, camera.number, camera.feature->name);
    const bool has_span = dataset.info.version != Version::kV30 || camera.number < episode.videos.size();
    if (!path || !has_span) {
      return fail(ErrorCode::kCorruption, "episode {} has no video of {} (LR041)", episode.index, camera.feature->name);
    }
    const auto [found, is_new] = by_path.emplace(*path, files.size());
    if (is_new) files.push_back({&camera, *path, {}});
    files[found->second].episodes.push_back(position);
  }
  return files;
}

// Keeps the order of info.json.
void insert_in_order(const Dataset& dataset, ComputedStats::OfFeature made, ComputedStats& stats) {
  const auto place_of = [&](const std::string& name) {
    return std::ranges::find(dataset.info.features, name, &Feature::name) - dataset.info.features.begin();
  };
  const auto after = std::ranges::find_if(
      stats.features, [&](const auto& other) { return place_of(other.name) > place_of(made.name); });
  stats.features.insert(after, std::move(made));
}

}  // namespace

std::vector<int64_t> sampled_frames(int64_t length) {
  constexpr int64_t kLeast = 100, kMost = 10'000;
  const auto by_power = static_cast<int64_t>(std::pow(static_cast<double>(length), 0.75));
  const int64_t count = std::max(std::min(kLeast, length), std::min(by_power, kMost));
  std::vector<int64_t> frames;
  const double step = count > 1 ? static_cast<double>(length - 1) / static_cast<double>(count - 1) : 0;
  // To the nearest, halves to the even number, as NumPy rounds.
  for (int64_t i = 0; i + 1 < count; ++i) {
    frames.push_back(static_cast<int64_t>(std::nearbyint(static_cast<double>(i) * step)));
  }
  if (count > 0) frames.push_back(count > 1 ? length - 1 : 0);
  return frames;
}

int64_t sampled_stride(int64_t width, int64_t height) {
  constexpr int64_t kThreshold = 300, kTarget = 150;
  return std::max(width, height) < kThreshold ? 1 : std::max(width, height) / kTarget;
}

Status add_picture_stats(const Dataset& dataset, const StatsOptions& options, ComputedStats& stats) {
  auto cameras = cameras_of(dataset, options.by_episode, stats.left_out);
  std::vector<SampledVideo> files;
  for (const auto& camera : cameras) {
    ASSIGN_OR_RETURN(auto more, videos_of(dataset, *camera));
    std::ranges::move(more, std::back_inserter(files));
  }
  if (options.progress != nullptr) options.progress->set_totals(0, static_cast<int64_t>(files.size()));
  const Sampler sampler(dataset, options);
  RETURN_IF_ERROR(parallel_try(static_cast<int64_t>(files.size()), threads_for(dataset.tree, options.threads),
                               "mr-lerobot", [&](int64_t i) {
                                 Status done = sampler.read(files[static_cast<size_t>(i)]);
                                 if (options.progress != nullptr) options.progress->add(0, 1);
                                 return done;
                               }));
  for (const auto& camera : cameras) {
    ComputedStats::OfFeature made{.name = camera->feature->name, .dtype = camera->feature->dtype, .stats = {}};
    made.episodes = std::move(camera->episodes);
    {
      MutexLock lock(camera->mutex);
      made.stats = image_stats(camera->all);
    }
    insert_in_order(dataset, std::move(made), stats);
  }
  return {};
}

}  // namespace millrace::lerobot
