// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes JPEG, PNG and WebP to pixels, and resizes them as Pillow does. The codecs are libraries of the Linux
// distribution. A separate library therefore holds the code that uses them (codecs/), and the first picture opens that
// library. Pure functions; thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::images {

// Pixels with 8 bits per channel, row-major [height, width, channels].
struct Picture {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;
};

// A picture in memory that it does not own.
struct PictureView {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::span<const uint8_t> pixels;
};

// The most pixels of a picture; a larger one is refused as damage or an attack. Pillow has the same limit.
inline constexpr int64_t kMostPixels = 178'956'970;

enum class Colour { kGray = 1, kRgb = 3, kRgba = 4 };
[[nodiscard]] Result<Colour> parse_colour(std::string_view name);  // "gray", "rgb", "rgba"

// How a picture of another shape is fitted to the wanted size.
enum class Fit {
  kCrop,     // the largest centred part with the wanted shape, resized
  kStretch,  // all of it, resized
  kPad,      // the whole picture, resized without distortion, on black
};
[[nodiscard]] Result<Fit> parse_fit(std::string_view name);  // "crop", "stretch", "pad"

struct DecodeOptions {
  Colour colour = Colour::kRgb;   // alpha is dropped, or set to 255 if the picture has none
  int64_t height = 0, width = 0;  // 0, 0: the stored size
  Fit fit = Fit::kCrop;
  bool reduced = false;  // decode a JPEG at 1/2, 1/4 or 1/8 if that still covers the size: faster
};

// Decodes a picture. The pixels equal those of Pillow's convert(): the colours of a palette, the upper 8 of 16 bits
// per channel. `name` is for messages. Errors: corruption (not a picture, cut, damaged), unsupported (another format
// such as TIFF, gray of 16 bits, an animation, a codec that this build lacks, too many pixels).
[[nodiscard]] Result<Picture> decode(std::span<const std::byte> file, const DecodeOptions& options,
                                     std::string_view name);

// Returns the channels that Pillow gives for this PNG or JPEG without a conversion: kGray for "1" and "L", kRgb,
// kRgba; kRgb for a palette. Reads headers only. Errors: corruption (cut off, not a picture), unsupported (another
// format, gray of 16 bits or with transparency, CMYK).
[[nodiscard]] Result<Colour> stored_colour(std::span<const std::byte> file, std::string_view name);

// Returns whether the bytes begin like a JPEG, PNG or WebP file.
bool is_picture(std::span<const std::byte> file);

// Resizes with Pillow's bilinear filter, bit for bit. REQUIRES: no side of `picture` is 0; height and width are above
// 0.
Picture resize(const Picture& picture, int64_t height, int64_t width, Fit fit);
Picture resize(const PictureView& picture, int64_t height, int64_t width, Fit fit);

}  // namespace millrace::images
