// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/diff_parts.h"
#include "millrace/video/video.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kFramesAtOnce = 16;
constexpr size_t kChunkBytes = 1 << 20;

// Two files of one camera, and the episodes whose frames are in both.
struct Pair {
  size_t camera = 0;                // in diff.cameras
  size_t place_a = 0, place_b = 0;  // in info.cameras() of each
  std::string path_a, path_b;
  std::vector<size_t> episodes;  // places in sides.episodes
};

Result<bool> same_bytes(const Source& a, const std::string& path_a, const Source& b, const std::string& path_b,
                        const std::stop_token& stop) {
  const TreeFile *const in_a = a.dataset.tree.find(path_a), *const in_b = b.dataset.tree.find(path_b);
  if (in_a == nullptr || in_b == nullptr || in_a->size != in_b->size) return false;
  ASSIGN_OR_RETURN(const auto file_a, a.dataset.tree.open(path_a));
  ASSIGN_OR_RETURN(const auto file_b, b.dataset.tree.open(path_b));
  std::vector<std::byte> x(kChunkBytes), y(kChunkBytes);
  for (int64_t at = 0; at < in_a->size;) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const auto count = static_cast<size_t>(std::min<int64_t>(kChunkBytes, in_a->size - at));
    RETURN_IF_ERROR(file_a->read_at(at, std::span(x).first(count)));
    RETURN_IF_ERROR(file_b->read_at(at, std::span(y).first(count)));
    if (std::memcmp(x.data(), y.data(), count) != 0) return false;
    at += static_cast<int64_t>(count);
  }
  return true;
}

int64_t first_frame(const Source& source, size_t episode, size_t camera) {
  if (!source.is_v3()) return 0;
  return std::llround(source.episode(episode).videos[camera].from_s * source.dataset.info.frame_rate());
}

std::string size_text(const video::Video& video) {
  return fmt::format("{} x {}", video.info().width, video.info().height);
}

// An open video of a side.
struct OpenVideo {
  std::unique_ptr<RandomReader> file;
  std::unique_ptr<video::Video> video;
};

Result<OpenVideo> open(const Source& source, const std::string& path, const std::stop_token& stop) {
  OpenVideo opened;
  ASSIGN_OR_RETURN(opened.file, source.dataset.tree.open(path));
  ASSIGN_OR_RETURN(opened.video, with_context(video::open_video(*opened.file, {.stop = stop}),
                                              fmt::format("{}/{}", source.url(), path)));
  return opened;
}

class FramesDiff {
 public:
  FramesDiff(const DiffSides& sides, DatasetDiff& diff) : sides_(sides), diff_(diff) {}

  Status run() {
    const auto pairs = pairs_of();
    Progress* const progress = sides_.options.progress;
    if (progress != nullptr) progress->set_totals(0, std::ssize(pairs));
    const int threads = std::max(threads_for(sides_.a.dataset.tree, sides_.options.threads),
                                 threads_for(sides_.b.dataset.tree, sides_.options.threads));
    return parallel_try(std::ssize(pairs), threads, "mr-lerobot", [&](int64_t i) {
      Status done = compare(pairs[static_cast<size_t>(i)]);
      if (progress != nullptr) progress->add(0, 1);
      return done;
    });
  }

 private:
  std::vector<Pair> pairs_of() {
    std::vector<Pair> pairs;
    const auto in_a = sides_.a.dataset.info.cameras(), in_b = sides_.b.dataset.info.cameras();
    for (size_t place_a = 0; place_a < in_a.size(); ++place_a) {
      const auto other = std::ranges::find(in_b, in_a[place_a]->name, &Feature::name);
      if (other == in_b.end()) continue;
      const auto place_b = static_cast<size_t>(other - in_b.begin());
      std::map<std::pair<std::string, std::string>, size_t> known;
      for (size_t i = 0; i < sides_.episodes.size(); ++i) {
        const auto [episode_a, episode_b] = sides_.episodes[i];
        const std::pair paths(sides_.a.video_path(episode_a, place_a), sides_.b.video_path(episode_b, place_b));
        const auto [found, is_new] = known.emplace(paths, pairs.size());
        if (is_new) pairs.push_back({diff_.cameras.size(), place_a, place_b, paths.first, paths.second, {}});
        pairs[found->second].episodes.push_back(i);
      }
      diff_.cameras.push_back({.name = in_a[place_a]->name});
    }
    return pairs;
  }

  Status compare(const Pair& pair) {
    ASSIGN_OR_RETURN(const bool same, same_bytes(sides_.a, pair.path_a, sides_.b, pair.path_b, sides_.options.stop));
    OpenVideo a, b;
    for (const size_t i : pair.episodes) {
      const auto [episode_a, episode_b] = sides_.episodes[i];
      DatasetDiff::Camera found{.frames = sides_.length(i)};
      const int64_t first_a = first_frame(sides_.a, episode_a, pair.place_a);
      const int64_t first_b = first_frame(sides_.b, episode_b, pair.place_b);
      if (!same || first_a != first_b) {
        if (a.video == nullptr) {
          ASSIGN_OR_RETURN(a, open(sides_.a, pair.path_a, sides_.options.stop));
          ASSIGN_OR_RETURN(b, open(sides_.b, pair.path_b, sides_.options.stop));
        }
        RETURN_IF_ERROR(check_frames(sides_.a, pair.path_a, *a.video, i, first_a));
        RETURN_IF_ERROR(check_frames(sides_.b, pair.path_b, *b.video, i, first_b));
        RETURN_IF_ERROR(compare_frames(i, *a.video, first_a, *b.video, first_b, found));
      }
      add(pair.camera, found);
    }
    return {};
  }

  Status check_frames(const Source& source, const std::string& path, const video::Video& video, size_t i,
                      int64_t first) const {
    if (first + sides_.length(i) <= video.index()->frames()) return {};
    return fail(ErrorCode::kCorruption, "{}/{}: it has {} frames, and those of episode {} are {} to {} [LR042]",
                source.url(), path, video.index()->frames(), sides_.number(i), first, first + sides_.length(i) - 1);
  }

  Status compare_frames(size_t i, video::Video& a, int64_t first_a, video::Video& b, int64_t first_b,
                        DatasetDiff::Camera& found) const {
    if (a.info().width != b.info().width || a.info().height != b.info().height) {
      found.size_a = size_text(a);
      found.size_b = size_text(b);
      found.differ = found.frames;
      keep_first(sides_.number(i), 0, found.first_episode, found.first_frame);
      return {};
    }
    // RGB would hide differences of pictures with more than 8 bits; where the formats are equal, the planes are read.
    const auto layout =
        a.info().pixel_format == b.info().pixel_format ? video::PixelLayout::kPlanes : video::PixelLayout::kHwc;
    const auto size = static_cast<size_t>(a.frame_bytes(layout));
    std::vector<std::byte> x(size * kFramesAtOnce), y(size * kFramesAtOnce);
    for (int64_t begin = 0; begin < found.frames; begin += kFramesAtOnce) {
      const int64_t count = std::min(kFramesAtOnce, found.frames - begin);
      std::vector<int64_t> in_a, in_b;
      for (int64_t k = 0; k < count; ++k) {
        in_a.push_back(first_a + begin + k);
        in_b.push_back(first_b + begin + k);
      }
      const auto bytes = size * static_cast<size_t>(count);
      RETURN_IF_ERROR(a.read(in_a, std::span(x).first(bytes), {.layout = layout, .stop = sides_.options.stop}));
      RETURN_IF_ERROR(b.read(in_b, std::span(y).first(bytes), {.layout = layout, .stop = sides_.options.stop}));
      std::vector<int64_t> differ;  // of this chunk
      for (int64_t k = 0; k < count; ++k) {
        const size_t at = size * static_cast<size_t>(k);
        if (std::memcmp(x.data() + at, y.data() + at, size) != 0) differ.push_back(k);
      }
      if (differ.empty()) continue;
      found.differ += std::ssize(differ);
      keep_first(sides_.number(i), begin + differ.front(), found.first_episode, found.first_frame);
      RETURN_IF_ERROR(add_largest(a, in_a, b, in_b, differ, found));
    }
    found.decoded = found.frames;
    return {};
  }

  Status add_largest(video::Video& a, std::span<const int64_t> in_a, video::Video& b, std::span<const int64_t> in_b,
                     std::span<const int64_t> differ, DatasetDiff::Camera& found) const {
    const auto size = static_cast<size_t>(a.frame_bytes(video::PixelLayout::kHwc));
    std::vector<std::byte> x(size * in_a.size()), y(x.size());
    RETURN_IF_ERROR(a.read(in_a, x, {.stop = sides_.options.stop}));
    RETURN_IF_ERROR(b.read(in_b, y, {.stop = sides_.options.stop}));
    for (const int64_t k : differ) {
      const size_t at = size * static_cast<size_t>(k);
      const auto far = largest_difference(std::span(x).subspan(at, size), std::span(y).subspan(at, size));
      found.largest = std::max(found.largest, far.value_or(0));
    }
    return {};
  }

  void add(size_t camera, const DatasetDiff::Camera& found) {
    MutexLock lock(mutex_);
    DatasetDiff::Camera& all = diff_.cameras[camera];
    all.frames += found.frames;
    all.decoded += found.decoded;
    all.differ += found.differ;
    all.largest = std::max(all.largest, found.largest);
    if (found.differ > 0) keep_first(found.first_episode, found.first_frame, all.first_episode, all.first_frame);
    if (!found.size_a.empty()) {
      all.size_a = found.size_a;
      all.size_b = found.size_b;
    }
  }

  const DiffSides& sides_;
  DatasetDiff& diff_;
  Mutex mutex_;
};

}  // namespace

std::optional<int64_t> largest_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return std::nullopt;
  int64_t largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max<int64_t>(largest, std::abs(std::to_integer<int>(a[i]) - std::to_integer<int>(b[i])));
  }
  return largest;
}

Status diff_frames(const DiffSides& sides, DatasetDiff& diff) {
  return FramesDiff(sides, diff).run();
}

}  // namespace millrace::lerobot
