// SPDX-License-Identifier: Apache-2.0
#pragma once

// The interface between a program and the video library that it opens. The version shows whether one build made both.

#include "millrace/video/edit.h"
#include "millrace/video/encode.h"
#include "millrace/video/video.h"

namespace millrace::video {

inline constexpr const char* kVideoLibrary = "libmillrace_video.so";
inline constexpr std::string_view kVideoVersion = MILLRACE_VERSION " " __VERSION__;
inline constexpr const char* kVideoVersionSymbol = "millrace_video_version";
inline constexpr const char* kVideoApiSymbol = "millrace_video_api";

struct VideoApi {
  Result<std::unique_ptr<Video>> (*open)(const RandomReader& file, const OpenOptions& options);
  Result<CutReport> (*cut)(Video& source, int64_t begin, int64_t end, ByteSink& out, const CutOptions& options);
  Result<JoinReport> (*join)(std::span<Video* const> parts, ByteSink& out, const JoinOptions& options);
  Result<std::string> (*join_difference)(Video& first, Video& part);
  Result<std::unique_ptr<Encoder>> (*encoder)(const EncodeOptions& options);
};

}  // namespace millrace::video
