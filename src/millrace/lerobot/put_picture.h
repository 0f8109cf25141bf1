// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pixels as a batch has them. Private to this room.

#include <cstddef>
#include <span>

namespace millrace::lerobot {

struct PictureLayout {
  size_t channels = 3;
  bool is_float = false;       // float32: value / 255.0f of each byte; else uint8
  bool channels_last = false;  // [height, width, channels], else [channels, height, width]
};

// `from` is [height, width, channels] of bytes. The step to planes and the step to floats are one pass.
void put_picture(std::span<const std::byte> from, const PictureLayout& layout, std::byte* to);

}  // namespace millrace::lerobot
