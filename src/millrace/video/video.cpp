// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/video.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/lazy_library.h"
#include "millrace/video/library.h"

namespace millrace::video {
namespace {

Result<const VideoApi*> load_api() {
  ASSIGN_OR_RETURN(void* const library, open_lazy_library({.file = kVideoLibrary,
                                                           .version_symbol = kVideoVersionSymbol,
                                                           .version = kVideoVersion,
                                                           .missing = "this build of Millrace reads no video",
                                                           .install = MILLRACE_FFMPEG_INSTALL}));
  // SAFETY: library.h declares the symbol with this type.
  return reinterpret_cast<const VideoApi*>(dlsym(library, kVideoApiSymbol));
}

Result<const VideoApi*> api() {
  static const Result<const VideoApi*> loaded = load_api();
  return loaded;
}

}  // namespace

bool FrameIndex::is_plain() const {
  if (packets.empty() || !packets.front().key || pts.empty() || pts.front() != 0) return false;
  return packets.size() == pts.size() && (step > 0 || pts.size() == 1);
}

Result<int64_t> FrameIndex::frame_near(double seconds, double tolerance_s) const {
  const double unit = time_base.value();
  const auto after = std::lower_bound(pts.begin(), pts.end(), seconds, [unit](int64_t ticks, double wanted) {
    return static_cast<double>(ticks) * unit < wanted;
  });
  int64_t nearest = after - pts.begin();
  const auto distance = [&](int64_t frame) {
    return std::abs(static_cast<double>(pts[static_cast<size_t>(frame)]) * unit - seconds);
  };
  if (nearest == frames() || (nearest > 0 && distance(nearest - 1) <= distance(nearest))) --nearest;
  if (nearest >= 0 && distance(nearest) < tolerance_s) return nearest;
  return fail(ErrorCode::kOutOfRange, "no frame is within {} s of {} s{}", tolerance_s, seconds,
              nearest < 0 ? "" : fmt::format("; the nearest is frame {}, {} s away", nearest, distance(nearest)));
}

Result<std::unique_ptr<Video>> open_video(const RandomReader& file, const OpenOptions& options) {
  ASSIGN_OR_RETURN(const VideoApi* const library, api());
  return library->open(file, options);
}

Result<CutReport> cut_video(Video& source, int64_t begin, int64_t end, ByteSink& out, const CutOptions& options) {
  ASSIGN_OR_RETURN(const VideoApi* const library, api());
  return library->cut(source, begin, end, out, options);
}

Result<std::string> join_difference(Video& first, Video& part) {
  ASSIGN_OR_RETURN(const VideoApi* const library, api());
  return library->join_difference(first, part);
}

Result<JoinReport> join_videos(std::span<Video* const> parts, ByteSink& out, const JoinOptions& options) {
  ASSIGN_OR_RETURN(const VideoApi* const library, api());
  return library->join(parts, out, options);
}

Result<std::unique_ptr<Encoder>> new_encoder(const EncodeOptions& options) {
  ASSIGN_OR_RETURN(const VideoApi* const library, api());
  return library->encoder(options);
}

EncodeOptions cut_encoding(const VideoInfo& info, const FrameIndex& index) {
  EncodeOptions options;
  if (info.codec == "hevc" || info.codec == "av1") options.codec = info.codec;
  options.pixel_format = info.pixel_format;
  options.width = info.width;
  options.height = info.height;
  options.time_base = index.time_base;
  options.timescale = index.time_base.den;
  options.fps = index.fps;
  options.crf = info.codec == "av1" ? 16 : 14;
  options.colour_space = info.colour_space;
  options.full_range = info.full_range;
  return options;
}

std::vector<std::byte> rgb_to_yuv420p(std::span<const uint8_t> rgb, int64_t width, int64_t height) {
  std::vector<std::byte> planes(static_cast<size_t>(width * height * 3 / 2));
  const auto at = [&](int64_t x, int64_t y) { return rgb.subspan(static_cast<size_t>(3 * (y * width + x)), 3); };
  // The weights are BT.601's in 1/65536, times 219/255 for luma and 224/255 for chroma.
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const auto p = at(x, y);
      planes[static_cast<size_t>(y * width + x)] =
          static_cast<std::byte>((16829 * p[0] + 33039 * p[1] + 6416 * p[2] + (16 << 16) + 32768) >> 16);
    }
  }
  const auto u = static_cast<size_t>(width * height), v = u + u / 4;
  for (int64_t y = 0; y < height / 2; ++y) {
    for (int64_t x = 0; x < width / 2; ++x) {
      int sum[3] = {};
      for (const auto& p : {at(2 * x, 2 * y), at(2 * x + 1, 2 * y), at(2 * x, 2 * y + 1), at(2 * x + 1, 2 * y + 1)}) {
        for (size_t c = 0; c < 3; ++c) sum[c] += p[c];
      }
      const auto place = static_cast<size_t>(y * (width / 2) + x);
      const auto chroma = [&](int r, int g, int b) {
        return static_cast<std::byte>((r * sum[0] + g * sum[1] + b * sum[2] + (128 << 18) + (1 << 17)) >> 18);
      };
      planes[u + place] = chroma(-9714, -19070, 28784);
      planes[v + place] = chroma(28784, -24103, -4681);
    }
  }
  return planes;
}

}  // namespace millrace::video
