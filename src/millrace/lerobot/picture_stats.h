// SPDX-License-Identifier: Apache-2.0
#pragma once

// Statistics of cameras by LeRobot's sampling rule (compute_stats.py of 0.3 to 0.6): some frames of each episode, every
// n-th pixel of large pictures, exact over these pixels in [0, 1]. Frames are decoded by video/video.h. Thread-safe.

#include <cstdint>
#include <vector>

#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// The frames of an episode that count: all up to 100, then length^0.75 of them, 10,000 at most, evenly from the first
// to the last.
std::vector<int64_t> sampled_frames(int64_t length);

// Every how many pixels of a row, and rows, count: 1 below 300 pixels, else so that about 150 are left.
int64_t sampled_stride(int64_t width, int64_t height);

// Inserts cameras into `stats.features`, in the order of info.json; `count` is frames. Depth cameras and pictures in
// tables go to `stats.left_out`. Uses threads, by_episode, progress and stop of the options.
// Errors: unsupported (FFmpeg or a decoder is missing), corruption (a video that cannot be decoded, or has fewer frames
// than its episode: naming file and episode), cancelled, those of reading.
[[nodiscard]] Status add_picture_stats(const Dataset& dataset, const StatsOptions& options, ComputedStats& stats);

}  // namespace millrace::lerobot
