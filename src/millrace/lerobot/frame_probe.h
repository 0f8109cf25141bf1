// SPDX-License-Identifier: Apache-2.0
#pragma once

// The video decoder that the checks use (LR053). The room video/ implements it. Without one, nothing is decoded.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::lerobot {

struct FrameFacts {
  double mean = 0, deviation = 0;  // mean and deviation of the luma, in 0 to 255
  uint64_t hash = 0;               // hash of all planes
};

// Thread-safe.
class FrameProbe {
 public:
  virtual ~FrameProbe() = default;
  // Decodes the frames with these numbers, which must ascend. Errors: corruption (a frame cannot be decoded),
  // out_of_range, unsupported (the codec), those of read_at.
  [[nodiscard]] virtual Result<std::vector<FrameFacts>> probe(const RandomReader& file,
                                                              std::span<const int64_t> frames) = 0;
};

// Chooses `count` of `length` frames: the first, the last, and others evenly between.
std::vector<int64_t> frames_to_probe(int64_t length, int64_t count);

// Describes the fault of an episode's pictures; empty: none.
std::string judge_frames(std::span<const FrameFacts> facts);

}  // namespace millrace::lerobot
