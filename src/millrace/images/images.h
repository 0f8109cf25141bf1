// SPDX-License-Identifier: Apache-2.0
#pragma once

// JPEG, PNG and WebP as pixels, resized as Pillow does it. The codecs are libraries of the distribution, so a separate
// library holds the code that uses them (codecs/), and the first picture opens that library. Pure functions;
// thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::images {

// Pixels of 8 bits a channel, row-major [height, width, channels].
struct Picture {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;
};

// The same in memory of somebody else.
struct PictureView {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::span<const uint8_t> pixels;
};

// A picture of more pixels is refused: it is damage, or an attack. Pillow has the same limit.
inline constexpr int64_t kMostPixels = 178'956'970;

enum class Colour { kGray = 1, kRgb = 3, kRgba = 4 };
[[nodiscard]] Result<Colour> parse_colour(std::string_view name);  // "gray", "rgb", "rgba"

// How a picture of another shape becomes one of the size that was asked for.
enum class Fit {
  kCrop,     // the largest part in the middle that has the wanted shape, resized
  kStretch,  // all of it, resized
  kPad,      // all of it, resized without distortion, with black beside it
};
[[nodiscard]] Result<Fit> parse_fit(std::string_view name);  // "crop", "stretch", "pad"

struct DecodeOptions {
  Colour colour = Colour::kRgb;   // alpha is dropped, or 255 where there is none
  int64_t height = 0, width = 0;  // 0, 0: as it is stored
  Fit fit = Fit::kCrop;
  bool reduced = false;  // a JPEG is decoded at a half, a quarter or an eighth where that still covers the size: faster
};

// Pixels are those of Pillow's convert(): of a palette its colours, of 16 bits a channel the upper 8. `name` is for
// messages. Errors: corruption (not a picture, cut, damaged), unsupported (another format such as TIFF, gray of 16
// bits, an animation, a codec that this build lacks, too many pixels).
[[nodiscard]] Result<Picture> decode(std::span<const std::byte> file, const DecodeOptions& options,
                                     std::string_view name);

// The channels that Pillow gives of this PNG or JPEG without a conversion: kGray for "1" and "L", kRgb, kRgba; kRgb of
// a palette. Reads headers only. Errors: corruption (cut off, not a picture), unsupported (another format, gray of 16
// bits or with transparency, CMYK).
[[nodiscard]] Result<Colour> stored_colour(std::span<const std::byte> file, std::string_view name);

// Whether these bytes begin as a JPEG, a PNG or a WebP does.
bool is_picture(std::span<const std::byte> file);

// Pillow's bilinear filter, bit for bit. REQUIRES: no side is 0; height and width are above 0.
Picture resize(const Picture& picture, int64_t height, int64_t width, Fit fit);
Picture resize(const PictureView& picture, int64_t height, int64_t width, Fit fit);

}  // namespace millrace::images
