// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/demo_arm.h"

#include <algorithm>
#include <cstdlib>

namespace millrace::lerobot {
namespace {

constexpr int32_t kTurn = 1 << 16;
// Lengths in 1/256 of a picture's row; the shoulder is in the middle of the lower edge.
constexpr int64_t kUpperArm = 32 * 256, kForearm = 26 * 256;
constexpr int64_t kShoulderX = 64 * 256, kShoulderY = 88 * 256;

// SplitMix64: the same numbers everywhere.
uint64_t mixed(uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9U;
  value = (value ^ value >> 27) * 0x94D049BB133111EBU;
  return value ^ value >> 31;
}

// In 1/65536, by the series up to the ninth power: better than the last bit.
int64_t sine(int32_t angle) {
  const int32_t turn = angle & (kTurn - 1);
  const int32_t half = turn & (kTurn / 2 - 1);
  const int64_t quarter = half <= kTurn / 4 ? half : kTurn / 2 - half;
  constexpr int64_t kTwoPi = 6746518852;  // in 2^-30
  const int64_t x = quarter * kTwoPi >> 16, square = x * x >> 30;
  int64_t sum = x, term = x;
  for (const int64_t divisor : {6, 20, 42, 72}) {
    term = -(term * square >> 30) / divisor;
    sum += term;
  }
  const int64_t value = sum >> 14;
  return turn < kTurn / 2 ? value : -value;
}

int64_t cosine(int32_t angle) {
  return sine(angle + kTurn / 4);
}

struct Point {
  int64_t x = 0, y = 0;
};
struct Joints {
  Point shoulder, elbow, hand;
};

// Angles count from the horizontal, the elbow's from the upper arm; y grows downwards.
Joints joints_of(const DemoPose& pose) {
  const Point shoulder{kShoulderX, kShoulderY};
  const Point elbow{shoulder.x + (kUpperArm * cosine(pose[0]) >> 16), shoulder.y - (kUpperArm * sine(pose[0]) >> 16)};
  const int32_t sum = pose[0] + pose[1];
  return {shoulder, elbow, {elbow.x + (kForearm * cosine(sum) >> 16), elbow.y - (kForearm * sine(sum) >> 16)}};
}

// The path of least jerk: 10 t^3 - 15 t^4 + 6 t^5, t and the result in 1/65536.
int64_t eased(int64_t t) {
  const int64_t t3 = (t * t >> 16) * t >> 16;
  return t3 * ((10 << 16) - 15 * t + (6 * t * t >> 16)) >> 16;
}

struct Canvas {
  std::vector<uint8_t> rgb = std::vector<uint8_t>(static_cast<size_t>(3 * kDemoWidth * kDemoHeight));

  void set(int64_t x, int64_t y, std::array<int, 3> colour) {
    for (size_t c = 0; c < 3; ++c) {
      rgb[static_cast<size_t>(3 * (y * kDemoWidth + x)) + c] = static_cast<uint8_t>(std::clamp(colour[c], 0, 255));
    }
  }
};

// How a camera sees the scene: shifted and enlarged by a power of two.
struct View {
  Point centre;  // of the scene, in the picture's middle
  int zoom = 0;  // enlarged by 2^zoom
  bool mirrored = false;
  std::array<int, 3> background;
};

View view_of(int64_t camera, const Joints& joints) {
  const Point middle{kDemoWidth * 128, kDemoHeight * 128};
  switch (camera) {
    case 1:
      return {joints.hand, 1, false, {52, 60, 70}};
    case 2:
      return {middle, 0, true, {92, 84, 74}};
    case 3:
      return {joints.elbow, 0, false, {60, 78, 62}};
    default:
      return {middle, 0, false, {70, 78, 92}};
  }
}

// Where the picture's pixel lies in the scene.
Point scene_point(const View& view, int64_t x, int64_t y) {
  const int64_t right = ((x - kDemoWidth / 2) * 256 + 128) * (view.mirrored ? -1 : 1);
  const int64_t down = (y - kDemoHeight / 2) * 256 + 128;
  return {view.centre.x + (right >> view.zoom), view.centre.y + (down >> view.zoom)};
}

bool is_near_line(const Point& p, const Point& a, const Point& b, int64_t radius) {
  const int64_t dx = b.x - a.x, dy = b.y - a.y, px = p.x - a.x, py = p.y - a.y;
  const int64_t length = dx * dx + dy * dy, along = std::clamp<int64_t>(px * dx + py * dy, 0, length);
  // The foot of the perpendicular, in 1/256 of the line.
  const int64_t part = length == 0 ? 0 : along * 256 / length;
  const int64_t x = px - (dx * part >> 8), y = py - (dy * part >> 8);
  return x * x + y * y <= radius * radius;
}

bool is_in_gripper(const Point& p, const Joints& joints, int32_t open) {
  const int64_t gap = 2 * 256 + (6 * 256 * int64_t{open} >> 16);
  const Point& hand = joints.hand;
  const bool is_finger = std::abs(std::abs(p.x - hand.x) - gap) <= 256 && std::abs(p.y - hand.y) <= 5 * 256;
  const bool is_palm = std::abs(p.x - hand.x) <= gap && std::abs(p.y - (hand.y - 4 * 256)) <= 256;
  return is_finger || is_palm;
}

}  // namespace

DemoEpisode demo_episode(uint64_t seed, int64_t episode, int64_t frames_per_second) {
  uint64_t state = mixed(seed * 1000003 + static_cast<uint64_t>(episode));
  const auto random = [&](int64_t low, int64_t high) {
    state = mixed(state);
    return low + static_cast<int64_t>(state % static_cast<uint64_t>(high - low));
  };
  DemoEpisode made;
  made.task = episode % static_cast<int64_t>(kDemoTasks.size());
  const int64_t frames = frames_per_second * 3 / 2 + random(0, frames_per_second + 1);
  const auto angle = [&](int64_t degrees) { return static_cast<int32_t>(degrees * kTurn / 360); };
  const DemoPose start = {angle(random(95, 150)), angle(random(-70, -20)), kTurn - 1};
  const DemoPose goal = {angle(random(30, 85)), angle(random(-110, -40)), kTurn / 5};
  const Joints reached = joints_of(goal);
  made.block_x = static_cast<int32_t>(reached.hand.x);
  made.block_y = static_cast<int32_t>(reached.hand.y + 4 * 256);
  // The arm goes a quarter of its way to the command in a thirtieth of a second.
  const int64_t share = std::clamp<int64_t>((kTurn / 4) * 30 / frames_per_second, 1, kTurn);
  DemoPose pose = start;
  for (int64_t frame = 0; frame < frames; ++frame) {
    const int64_t t = std::min<int64_t>(kTurn, (frame + 1) * kTurn * 5 / (frames * 4 + 1));
    DemoPose action;
    for (size_t i = 0; i < pose.size(); ++i) {
      // The gripper closes in the last third.
      const int64_t at = i == 2 ? std::max<int64_t>(0, 3 * t - 2 * kTurn) : t;
      action[i] = start[i] + static_cast<int32_t>((goal[i] - start[i]) * eased(at) >> 16);
    }
    made.states.push_back(pose);
    made.actions.push_back(action);
    for (size_t i = 0; i < pose.size(); ++i) {
      pose[i] += static_cast<int32_t>((action[i] - pose[i]) * share >> 16);
    }
  }
  return made;
}

std::vector<uint8_t> demo_picture(const DemoEpisode& episode, int64_t frame, int64_t camera) {
  const DemoPose& pose = episode.states[static_cast<size_t>(frame)];
  const Joints joints = joints_of(pose);
  const View view = view_of(camera, joints);
  std::array<int, 3> block = {40, 40, 40};
  block[static_cast<size_t>(episode.task)] = 210;
  Canvas canvas;
  for (int64_t y = 0; y < kDemoHeight; ++y) {
    for (int64_t x = 0; x < kDemoWidth; ++x) {
      const Point p = scene_point(view, x, y);
      const int shade = static_cast<int>(p.y >> 9);
      std::array<int, 3> colour = {view.background[0] + shade, view.background[1] + shade, view.background[2] + shade};
      if (p.y >= kShoulderY) colour = {120, 92, 60};
      if (std::abs(p.x - episode.block_x) <= 5 * 256 && std::abs(p.y - episode.block_y) <= 5 * 256) colour = block;
      if (is_near_line(p, joints.shoulder, joints.elbow, 4 * 256)) colour = {190, 190, 196};
      if (is_near_line(p, joints.elbow, joints.hand, 3 * 256)) colour = {226, 196, 90};
      if (is_near_line(p, joints.elbow, joints.elbow, 5 * 256)) colour = {70, 70, 76};
      if (is_in_gripper(p, joints, pose[2])) colour = {24, 24, 28};
      canvas.set(x, y, colour);
    }
  }
  return std::move(canvas.rgb);
}

std::array<float, kDemoJoints> demo_values(const DemoPose& pose) {
  constexpr double kRadians = 6.283185307179586 / kTurn;
  return {static_cast<float>(pose[0] * kRadians), static_cast<float>(pose[1] * kRadians),
          static_cast<float>(pose[2] / 65535.0)};
}

}  // namespace millrace::lerobot
