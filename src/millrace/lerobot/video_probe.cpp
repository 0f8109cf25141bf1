// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/video_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/hash/hash.h"

namespace millrace::lerobot {
namespace {

constexpr size_t kMostIndices = 64;

// BT.601's weights.
FrameFacts facts_of(std::span<const std::byte> rgb) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i + 2 < rgb.size(); i += 3) {
    const double luma = 0.299 * std::to_integer<int>(rgb[i]) + 0.587 * std::to_integer<int>(rgb[i + 1]) +
                        0.114 * std::to_integer<int>(rgb[i + 2]);
    sum += luma;
    squares += luma * luma;
  }
  const double pixels = std::max(1.0, static_cast<double>(rgb.size() / 3));
  FrameFacts facts;
  facts.mean = sum / pixels;
  facts.deviation = std::sqrt(std::max(0.0, squares / pixels - facts.mean * facts.mean));
  return facts;
}

}  // namespace

Result<std::unique_ptr<video::Video>> VideoProbe::open(const RandomReader& file) {
  const std::string key = fmt::format("{}\n{}\n{}", file.name(), file.version(), file.size());
  video::OpenOptions options{.stop = stop_};
  {
    MutexLock lock(mutex_);
    const auto known = indices_.find(key);
    if (known != indices_.end()) options.index = known->second;
  }
  ASSIGN_OR_RETURN(auto opened, video::open_video(file, options));
  MutexLock lock(mutex_);
  if (indices_.size() >= kMostIndices) indices_.clear();
  indices_[key] = opened->index();
  return opened;
}

Result<std::vector<FrameFacts>> VideoProbe::probe(const RandomReader& file, std::span<const int64_t> frames) {
  ASSIGN_OR_RETURN(const auto video, open(file));
  std::vector<FrameFacts> all;
  std::vector<std::byte> rgb(static_cast<size_t>(video->frame_bytes(video::PixelLayout::kHwc)));
  std::vector<std::byte> planes(static_cast<size_t>(video->frame_bytes(video::PixelLayout::kPlanes)));
  for (const int64_t frame : frames) {
    // The second costs no decoding: the picture is still there.
    RETURN_IF_ERROR(video->read({&frame, 1}, planes, {.layout = video::PixelLayout::kPlanes, .stop = stop_}));
    RETURN_IF_ERROR(video->read({&frame, 1}, rgb, {.stop = stop_}));
    all.push_back(facts_of(rgb));
    all.back().hash = xxh3_64(planes);
  }
  return all;
}

}  // namespace millrace::lerobot
