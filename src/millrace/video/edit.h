// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exact cuts and joins of videos. They copy packets if every frame then decodes to the same pixels. Each function opens
// its result and compares it with the source before it appends a byte to `out`. Functions are thread-safe, but two
// calls must not share a Video. Memory: the size of the result.

#include <functional>
#include <optional>

#include "millrace/video/encode.h"
#include "millrace/video/video.h"

namespace millrace::video {

struct CheckOptions {
  int random_frames = 3;  // frames compared besides the first and the last one
  uint64_t seed = 0;      // chooses them
  int threads = 0;        // decode different parts in parallel; 0: available_cpus()
};

// The default encoding of frames that cannot be copied: the source's codec (h264 instead of any but h264, hevc and
// av1), crf 14 (av1: 16), a key frame every second frame, no B-frames.
EncodeOptions cut_encoding(const VideoInfo& info, const FrameIndex& index);

struct CutOptions {
  bool may_encode = true;               // false: unsupported if a copy is not exact
  bool must_encode = false;             // true: encodes even frames that could be copied
  std::optional<EncodeOptions> encode;  // empty: cut_encoding
  double min_psnr_db = 30;              // every encoded frame must reach it, over all planes
  CheckOptions check;
  std::stop_token stop;
};

struct CutReport {
  bool copied = false;  // false: encoded
  int64_t frames = 0;
  double min_psnr_db = 0;  // of the worst frame; 0 if packets were copied
};

// Appends frames [begin, end) of `source` as an MP4 that begins at 0, in the same time base. Copies packets if decoding
// can start at `begin` and the packets of these frames are consecutive in decode order (not counting pictures shown
// before `begin`); the decoded frames are then bit-equal. Otherwise encodes these frames.
// Errors: out_of_range, unsupported (must be encoded, and may not or cannot be), corruption (of the source; naming the
// frame), internal (the result is not the source: nothing is appended), cancelled, those of `out`.
[[nodiscard]] Result<CutReport> cut_video(Video& source, int64_t begin, int64_t end, ByteSink& out,
                                          const CutOptions& options = {});

struct JoinOptions {
  CheckOptions check;  // of each part
  std::stop_token stop;
};

struct JoinReport {
  int64_t frames = 0;
  std::vector<int64_t> begins;  // the first frame of each part
};

// Returns why join_videos would refuse `part` after `first`, or an empty string. Errors: those of reading.
[[nodiscard]] Result<std::string> join_difference(Video& first, Video& part);

// Appends one MP4 with the packets of all parts in turn. Part n + 1 begins exactly where the last frame of part n ends.
// Errors: unsupported (naming the part and what differs: codec, size, pixel format, time base, delay of B-frames, the
// H.264 or HEVC parameters; a part that does not begin with a key frame, or hides frames), and those of cut_video.
[[nodiscard]] Result<JoinReport> join_videos(std::span<Video* const> parts, ByteSink& out,
                                             const JoinOptions& options = {});

}  // namespace millrace::video
