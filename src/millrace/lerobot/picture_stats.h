// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes statistics of cameras by LeRobot's sampling rule (compute_stats.py of 0.3 to 0.6): some frames of each
// episode, and every n-th pixel of large pictures. The statistics of the sampled pixels are exact, in [0, 1].
// video/video.h decodes the frames. Thread-safe.

#include <cstdint>
#include <vector>

#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// Returns the frames of an episode to sample: all frames up to 100, then length^0.75 frames, at most 10,000, evenly
// from the first to the last.
std::vector<int64_t> sampled_frames(int64_t length);

// Returns the step between sampled pixels of a row, and between sampled rows: 1 if the longer side is below 300
// pixels, otherwise a step that leaves about 150 pixels of that side.
int64_t sampled_stride(int64_t width, int64_t height);

// Inserts cameras into `stats.features`, in the order of info.json; `count` is the number of frames. Depth cameras and
// pictures in tables go to `stats.left_out`. Uses threads, by_episode, progress and stop of the options. Errors:
// unsupported (FFmpeg or a decoder is missing), corruption (a video that cannot be decoded, or has fewer frames than
// its episode: naming file and episode), cancelled, those of reading.
[[nodiscard]] Status add_picture_stats(const Dataset& dataset, const StatsOptions& options, ComputedStats& stats);

}  // namespace millrace::lerobot
