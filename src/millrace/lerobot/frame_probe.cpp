// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/frame_probe.h"

#include <algorithm>

namespace millrace::lerobot {
namespace {

// Below this spread of the luma a picture shows one grey; a lens cap leaves noise of about 1.
constexpr double kFlat = 1.5;

}  // namespace

std::vector<int64_t> frames_to_probe(int64_t length, int64_t count) {
  std::vector<int64_t> frames;
  const int64_t steps = std::min(length, std::max<int64_t>(count, 2)) - 1;
  for (int64_t i = 0; i <= steps; ++i) frames.push_back(steps == 0 ? 0 : (length - 1) * i / steps);
  return frames;
}

std::string judge_frames(std::span<const FrameFacts> facts) {
  const auto flat = std::count_if(facts.begin(), facts.end(), [](const auto& f) { return f.deviation < kFlat; });
  if (flat > 0 && flat == static_cast<int64_t>(facts.size())) {
    return facts.front().mean < 20 ? "all frames that were decoded are black"
                                   : "all frames that were decoded are of one colour";
  }
  // Two frames of a slow scene may be equal; all of three or more are not.
  const bool frozen = facts.size() > 2 && std::all_of(facts.begin(), facts.end(),
                                                      [&](const auto& f) { return f.hash == facts.front().hash; });
  return frozen ? "all frames that were decoded are the same picture" : "";
}

}  // namespace millrace::lerobot
