// SPDX-License-Identifier: Apache-2.0
#pragma once

// Frames of MP4 and MOV files by number. FFmpeg demuxes and decodes. It is large, so a separate library holds the code
// that uses it (ffmpeg/), and the first call opens that library.
//
// A frame number counts frames in presentation order, from 0. Times are integers in units of the track's time base.
// Opening reads the file's tables and builds an index of all packets. A frame then costs ranged reads of exactly the
// packets that it needs, so a file can stay in an object store.
//
// A FrameIndex never changes and threads may share it. A Video is for one thread at a time. After a fork, a Video with
// one decoder thread works in both processes; a Video with several works in the parent only.

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::video {

struct Rational {
  int64_t num = 0;
  int64_t den = 1;
  bool operator==(const Rational&) const = default;
  double value() const { return static_cast<double>(num) / static_cast<double>(den); }
};

// One coded picture.
struct Packet {
  int64_t offset = 0;  // in the file
  int64_t size_bytes = 0;
  int64_t pts = 0, dts = 0, duration = 0;  // in units of the time base
  bool key = false;
  bool hidden = false;  // an edit list excludes it from the presentation
};

struct FrameIndex {
  Rational time_base;           // seconds per tick
  std::vector<Packet> packets;  // in the order of decoding
  std::vector<int64_t> pts;     // of each frame, ascending
  std::vector<int64_t> packet;  // of each frame: its index in `packets`
  int64_t reorder_depth = 0;    // pictures that are decoded before one that is shown earlier; 0: no B-frames
  int64_t step = 0;             // ticks from frame to frame if constant; else 0
  Rational fps;                 // exact if the step is constant, else the average; 0/1 for a single frame

  int64_t frames() const { return static_cast<int64_t>(pts.size()); }
  // True for the files that LeRobot's loaders read exactly: a constant step, a key frame at 0, no hidden packet.
  bool is_plain() const;

  // Returns the frame nearest to `seconds`, the earlier one of two equally near. Errors: out_of_range, unless that
  // frame is less than `tolerance_s` away (LeRobot's rule; its default is 1e-4).
  [[nodiscard]] Result<int64_t> frame_near(double seconds, double tolerance_s) const;
};

struct VideoInfo {
  std::string codec;         // FFmpeg's name: "h264", "hevc", "av1"
  std::string pixel_format;  // FFmpeg's name: "yuv420p"
  int64_t width = 0, height = 0;
  std::string colour_space;  // FFmpeg's name of the matrix: "bt709"; "unknown" is converted as BT.601
  bool full_range = false;
  int64_t streams = 0;  // streams of any kind in the file; the first video stream is read
};

enum class PixelLayout {
  kHwc,     // uint8 [height, width, 3], RGB
  kChw,     // uint8 [3, height, width], RGB
  kPlanes,  // the decoded planes, rows without padding: for yuv420p Y, then U and V at half size
};

struct ReadOptions {
  PixelLayout layout = PixelLayout::kHwc;
  std::stop_token stop;
  Clock::time_point deadline = Clock::time_point::max();
};

struct OpenOptions {
  int threads = 1;                          // decoder threads; more help only long sequential reads of large pictures
  std::shared_ptr<const FrameIndex> index;  // an index of this file from an earlier open: saves the scan
  std::stop_token stop;
};

class Video {
 public:
  virtual ~Video() = default;

  virtual std::string_view name() const = 0;
  virtual const VideoInfo& info() const = 0;
  virtual const std::shared_ptr<const FrameIndex>& index() const = 0;

  // Returns the size of one frame in this layout.
  virtual int64_t frame_bytes(PixelLayout layout) const = 0;
  // Writes the frames with these numbers to `out`, in the order of `numbers`; any order, repeats allowed. Decodes each
  // group of pictures once. Keeps the decoder, so the next frames of a group need no seek.
  // RGB is the output of FFmpeg's swscale (bilinear, no dithering) with the file's matrix and range, or BT.601 and
  // limited range if the file names none. docs/video.md states the distance to the formula.
  // Errors: out_of_range (a number), corruption (naming the frame), timeout, cancelled, those of the reader. After an
  // error the content of `out` is unspecified; other frames can still be read.
  // REQUIRES: out.size() == numbers.size() * frame_bytes(options.layout).
  [[nodiscard]] virtual Status read(std::span<const int64_t> numbers, std::span<std::byte> out,
                                    const ReadOptions& options = {}) = 0;

  // Frees the decoder (some megabytes) until the next read, so that many Videos can be open at once.
  virtual void rest() = 0;
};

// `file` must outlive the Video. Errors: unsupported (the library or FFmpeg is missing, naming the packages to install;
// no decoder for the codec), corruption (truncated, damaged, no video track, another container), cancelled, those of
// the reader.
[[nodiscard]] Result<std::unique_ptr<Video>> open_video(const RandomReader& file, const OpenOptions& options = {});

}  // namespace millrace::video
