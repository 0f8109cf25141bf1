// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clips for tests: every frame differs from every other.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/video/encode.h"
#include "millrace/video/video.h"

namespace millrace::video {

struct ClipSpec {
  std::string codec = "h264";
  int gop = 2;
  int b_frames = 0;
  Rational fps{30, 1};
  int64_t frames = 41;
  bool variable = false;  // times at uneven distances
  std::map<std::string, std::string> settings;
  uint64_t seed = 0;
  int64_t width = 96, height = 64;
  int crf = 20;

  std::string name() const {
    std::string text = fmt::format("{}, gop {}, {} B-frames, {}/{} fps", codec, gop, b_frames, fps.num, fps.den);
    for (const auto& [key, value] : settings) text += ", " + key + "=" + value;
    return text + (variable ? ", variable" : "");
  }
};

// Blocks that stay, a slope that moves and a bright square that goes from place to place: what a frame is predicted
// from is right for the most part, so that no encoder begins anew by itself.
inline std::vector<uint8_t> clip_picture(const ClipSpec& spec, int64_t frame) {
  std::vector<uint8_t> rgb;
  const int64_t left = frame * 5 % (spec.width - 12), top = frame * 3 % (spec.height - 12);
  for (int64_t y = 0; y < spec.height; ++y) {
    for (int64_t x = 0; x < spec.width; ++x) {
      const auto block = static_cast<uint64_t>((x / 16) * 31 + (y / 16) * 17) + spec.seed * 101;
      const uint64_t mixed = (block + 1) * 0x9E3779B97F4A7C15U;
      const bool bright = x >= left && x < left + 12 && y >= top && y < top + 12;
      for (int c = 0; c < 3; ++c) {
        const uint64_t still = mixed >> (8 * c + 20) & 127U;
        rgb.push_back(bright ? static_cast<uint8_t>(255 - 4 * (frame % 32) * (c == 1 ? 1 : 0))
                             : static_cast<uint8_t>(still + static_cast<uint64_t>((x + 2 * frame) & 63)));
      }
    }
  }
  return rgb;
}

inline EncodeOptions clip_encoding(const ClipSpec& spec) {
  EncodeOptions options;
  options.codec = spec.codec;
  options.width = spec.width;
  options.height = spec.height;
  options.time_base = {spec.fps.den, spec.fps.num};
  options.gop = spec.gop;
  options.b_frames = spec.b_frames;
  options.crf = spec.crf;
  options.settings = spec.settings;
  return options;
}

inline std::vector<std::byte> clip(const ClipSpec& spec) {
  SCOPED_TRACE(spec.name());
  auto encoder = new_encoder(clip_encoding(spec));
  if (!encoder) {
    ADD_FAILURE() << encoder.error().to_string();
    return {};
  }
  for (int64_t frame = 0, pts = 0; frame < spec.frames; ++frame) {
    const int64_t duration = spec.variable ? 1 + frame * frame % 3 : 1;
    const auto planes = rgb_to_yuv420p(clip_picture(spec, frame), spec.width, spec.height);
    const Status added = (*encoder)->add(planes, pts, duration);
    EXPECT_TRUE(added) << added.error().to_string();
    pts += duration;
  }
  auto file = (*encoder)->finish();
  EXPECT_TRUE(file) << file.error().to_string();
  return file ? std::move(*file) : std::vector<std::byte>();
}

// A clip with its reader and its Video.
struct OpenClip {
  explicit OpenClip(std::vector<std::byte> file, std::string file_name = "clip.mp4")
      : bytes(std::move(file)), reader(bytes, std::move(file_name)), video(open_video(reader)) {
    EXPECT_TRUE(video) << video.error().to_string();
  }
  OpenClip(const OpenClip&) = delete;
  OpenClip& operator=(const OpenClip&) = delete;
  Video& operator*() { return **video; }
  Video* operator->() { return video->get(); }

  std::vector<std::byte> frame(int64_t number, PixelLayout layout = PixelLayout::kPlanes) {
    std::vector<std::byte> out(static_cast<size_t>((*video)->frame_bytes(layout)));
    const Status read = (*video)->read({&number, 1}, out, {.layout = layout});
    EXPECT_TRUE(read) << read.error().to_string();
    return out;
  }
  std::vector<std::vector<std::byte>> all_frames() {
    std::vector<std::vector<std::byte>> frames;
    for (int64_t i = 0; i < (*video)->index()->frames(); ++i) frames.push_back(frame(i));
    return frames;
  }

  const std::vector<std::byte> bytes;
  const MemoryReader reader;
  Result<std::unique_ptr<Video>> video;
};

}  // namespace millrace::video
