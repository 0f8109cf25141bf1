// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts pixels to the layout of a batch. Private to this room.

#include <cstddef>
#include <span>

namespace millrace::lerobot {

struct PictureLayout {
  size_t channels = 3;
  bool is_float = false;       // float32, each byte / 255.0f; else uint8
  bool channels_last = false;  // [height, width, channels], else [channels, height, width]
};

// Writes the picture to `to`. `from` is bytes [height, width, channels]. Converts to planes and to floats in one pass.
void put_picture(std::span<const std::byte> from, const PictureLayout& layout, std::byte* to);

}  // namespace millrace::lerobot
