// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes a small LeRobot or GR00T dataset: a planar arm with two joints and a gripper reaches for a coloured block, seen
// by several cameras. The simulation and the pictures use integers only, so equal options give equal pictures and
// numbers on every machine, and equal bytes with one build of FFmpeg and Arrow.

#include <cstdint>
#include <stop_token>
#include <string>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/video/video.h"

namespace millrace::lerobot {

enum class DemoVersion { kV21, kV30, kGroot };  // kGroot: v2.1 with the extra files that GR00T wants

struct DemoOptions {
  std::string url;  // a folder without a dataset in it
  DemoVersion version = DemoVersion::kV30;
  int64_t episodes = 5;  // 1 to 1000
  int64_t cameras = 2;   // 1 to 4
  video::Rational fps{30, 1};
  std::string codec = "av1";  // "h264", "hevc", "av1": LeRobot's is av1
  uint64_t seed = 0;
};

struct DemoReport {
  int64_t episodes = 0;
  int64_t frames = 0;  // frames per camera
  int64_t videos = 0;  // files
  int64_t bytes = 0;   // bytes of all files
};

// Writes meta/info.json last, because tools recognise a dataset by that file. Errors: invalid_argument, already_exists
// (the folder is not empty), unsupported (FFmpeg, its encoder or pyarrow is missing, naming what to install),
// cancelled, those of the storage.
[[nodiscard]] Result<DemoReport> write_demo(const DemoOptions& options, const std::stop_token& stop,
                                            Progress* progress = nullptr);

}  // namespace millrace::lerobot
