// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "millrace/video/edit.h"

namespace millrace::video {

// Implements cut_video, join_difference and join_videos. REQUIRES: this library opened the Videos.
[[nodiscard]] Result<CutReport> cut(Video& source, int64_t begin, int64_t end, ByteSink& out,
                                    const CutOptions& options);
[[nodiscard]] Result<std::string> difference(Video& first, Video& part);
[[nodiscard]] Result<JoinReport> join(std::span<Video* const> parts, ByteSink& out, const JoinOptions& options);

}  // namespace millrace::video
