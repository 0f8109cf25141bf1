// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arm of demo.h and its pictures. Pure functions, in integers; thread-safe.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::lerobot {

inline constexpr int64_t kDemoWidth = 128, kDemoHeight = 96;
inline constexpr int64_t kDemoJoints = 3;
inline constexpr std::array<std::string_view, kDemoJoints> kDemoJointNames = {"shoulder", "elbow", "gripper"};
inline constexpr std::array<std::string_view, 4> kDemoCameras = {"front", "wrist", "left", "top"};
inline constexpr std::array<std::string_view, 3> kDemoTasks = {"reach for the red block", "reach for the green block",
                                                               "reach for the blue block"};

// Angles in 1/65536 of a turn; the gripper is 0 (closed) to 65535 (open).
using DemoPose = std::array<int32_t, kDemoJoints>;

struct DemoEpisode {
  int64_t task = 0;
  std::vector<DemoPose> states;   // the arm's pose in each frame
  std::vector<DemoPose> actions;  // the commanded pose in each frame
  int32_t block_x = 0, block_y = 0;
};

// Makes an episode of one and a half to two and a half seconds at this frame rate.
DemoEpisode demo_episode(uint64_t seed, int64_t episode, int64_t frames_per_second);

// Draws a frame as RGB [kDemoHeight, kDemoWidth, 3]. REQUIRES: camera < kDemoCameras.size().
std::vector<uint8_t> demo_picture(const DemoEpisode& episode, int64_t frame, int64_t camera);

// Converts a pose to the units of datasets: radians, the gripper from 0 to 1.
std::array<float, kDemoJoints> demo_values(const DemoPose& pose);

}  // namespace millrace::lerobot
