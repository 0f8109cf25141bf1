// SPDX-License-Identifier: Apache-2.0
#pragma once

// The decoders of the library, with the signature of ImagesApi::Decode. Each exists only if the build found its codec.

#include "millrace/images/library.h"

namespace millrace::images {

[[nodiscard]] Result<Picture> decode_jpeg(std::span<const std::byte> file, Colour colour, AtLeast at_least,
                                          std::string_view name);
[[nodiscard]] Result<Picture> decode_png(std::span<const std::byte> file, Colour colour, AtLeast at_least,
                                         std::string_view name);
[[nodiscard]] Result<Picture> decode_webp(std::span<const std::byte> file, Colour colour, AtLeast at_least,
                                          std::string_view name);

// Allocates a picture of this size. Errors: unsupported (too many pixels).
[[nodiscard]] inline Result<Picture> make_picture(int64_t height, int64_t width, int64_t channels,
                                                  std::string_view name) {
  if (height < 1 || width < 1 || height > kMostPixels / width) {
    return fail(ErrorCode::kUnsupported, "{}: a picture of {} x {} pixels; {} pixels are read at most", name, width,
                height, kMostPixels);
  }
  Picture picture{.height = height, .width = width, .channels = channels, .pixels = {}};
  picture.pixels.resize(static_cast<size_t>(height * width * channels));
  return picture;
}

// Returns the luma as Pillow computes it: BT.601 in units of 1/65536.
inline uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}
// Converts interleaved RGB pixels.
inline Picture to_gray(const Picture& rgb) {
  Picture gray{.height = rgb.height, .width = rgb.width, .channels = 1, .pixels = {}};
  gray.pixels.resize(static_cast<size_t>(rgb.height * rgb.width));
  for (size_t i = 0; i < gray.pixels.size(); ++i) gray.pixels[i] = luma(rgb.pixels.data() + 3 * i);
  return gray;
}
inline Picture with_alpha(const Picture& rgb) {
  Picture rgba{.height = rgb.height, .width = rgb.width, .channels = 4, .pixels = {}};
  rgba.pixels.resize(static_cast<size_t>(rgb.height * rgb.width * 4));
  for (size_t i = 0; i < rgba.pixels.size() / 4; ++i) {
    for (size_t c = 0; c < 3; ++c) rgba.pixels[4 * i + c] = rgb.pixels[3 * i + c];
    rgba.pixels[4 * i + 3] = 255;
  }
  return rgba;
}

}  // namespace millrace::images
