// SPDX-License-Identifier: Apache-2.0
// What the program finds in the library.
#include "millrace/video/ffmpeg/edit.h"
#include "millrace/video/ffmpeg/reader.h"
#include "millrace/video/ffmpeg/writer.h"
#include "millrace/video/library.h"

namespace millrace::video {
namespace {

Result<std::unique_ptr<Video>> open(const RandomReader& file, const OpenOptions& options) {
  keep_ffmpeg_quiet();
  ASSIGN_OR_RETURN(std::unique_ptr<Video> video, FfmpegVideo::open(file, options));
  return video;
}

Result<std::unique_ptr<Encoder>> encoder(const EncodeOptions& options) {
  keep_ffmpeg_quiet();
  return make_encoder(options);
}

}  // namespace
}  // namespace millrace::video

extern "C" {

[[gnu::visibility("default")]] extern const char millrace_video_version[];
const char millrace_video_version[] = MILLRACE_VERSION " " __VERSION__;

[[gnu::visibility("default")]] extern const millrace::video::VideoApi millrace_video_api;
const millrace::video::VideoApi millrace_video_api = {
    .open = &millrace::video::open,
    .cut = &millrace::video::cut,
    .join = &millrace::video::join,
    .join_difference = &millrace::video::difference,
    .encoder = &millrace::video::encoder,
};
}
