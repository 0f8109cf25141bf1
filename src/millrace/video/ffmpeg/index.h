// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of an MP4 or MOV file, read by FFmpeg's demuxer without the pictures.

#include "millrace/video/ffmpeg/handles.h"

namespace millrace::video {

struct Track {
  std::shared_ptr<const FrameIndex> index;
  Handle<AVCodecParameters> parameters;  // video_delay set from the index
  int64_t streams = 0;
};

// Reads the first video track. Uses `index`, if given, instead of a scan. Errors: as open_video.
[[nodiscard]] Result<Track> read_track(const RandomReader& file, std::shared_ptr<const FrameIndex> index,
                                       std::stop_token stop);

}  // namespace millrace::video
