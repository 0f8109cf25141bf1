// SPDX-License-Identifier: Apache-2.0
#pragma once

// Encodes frames to an MP4 in memory: for demo data, and for cuts that cannot be copied. An Encoder is for one thread.
// Equal frames give equal bytes with one build of FFmpeg and one number of threads.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/video/video.h"

namespace millrace::video {

struct EncodeOptions {
  std::string codec = "h264";  // "h264" (libx264), "hevc" (libx265), "av1" (libsvtav1, else libaom-av1)
  std::string pixel_format = "yuv420p";
  int64_t width = 0, height = 0;
  Rational time_base;     // of pts; 1/fps counts frames
  Rational fps;           // for the encoder's rate decisions; 0/1: one frame per tick of the time base
  int64_t timescale = 0;  // ticks per second of the track; 0: FFmpeg's choice
  int gop = 2;            // frames from one key frame to the next; 2 as LeRobot, 0: the encoder's choice
  int b_frames = 0;       // the most in a row; SVT-AV1 decides for itself
  int crf = 30;           // LeRobot's value; a smaller value gives better quality and larger files
  int threads = 1;
  std::string preset;                           // empty: "veryfast" for x264 and x265, "10" for SVT-AV1
  std::map<std::string, std::string> settings;  // further settings, by FFmpeg's names
  std::string colour_space;                     // FFmpeg's name, written into the stream; empty: none
  bool full_range = false;
};

class Encoder {
 public:
  virtual ~Encoder() = default;
  // Adds a frame. `planes`: the layout of PixelLayout::kPlanes. The frame is shown from `pts` on for `duration`.
  // REQUIRES: `pts` is greater than that of the frame before. Errors: invalid_argument (another number of bytes),
  // resource_exhausted, internal (the encoder's).
  [[nodiscard]] virtual Status add(std::span<const std::byte> planes, int64_t pts, int64_t duration) = 0;
  // Returns the whole file, its tables in front, so that a reader of a remote object finds them first. Call it once,
  // last.
  [[nodiscard]] virtual Result<std::vector<std::byte>> finish() = 0;
};

// Makes an encoder. Errors: unsupported (the library or an encoder of this codec is missing; names those tried),
// invalid_argument.
[[nodiscard]] Result<std::unique_ptr<Encoder>> new_encoder(const EncodeOptions& options);

// Converts RGB [height, width, 3] to planes of yuv420p: BT.601, limited range, chroma from the mean of four pixels.
// Integer arithmetic, so every machine gives the same bytes. REQUIRES: even sizes, rgb.size() == 3 * width * height.
std::vector<std::byte> rgb_to_yuv420p(std::span<const uint8_t> rgb, int64_t width, int64_t height);

}  // namespace millrace::video
