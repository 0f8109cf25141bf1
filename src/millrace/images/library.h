// SPDX-License-Identifier: Apache-2.0
#pragma once

// The interface between the library of codecs and the program that opens it. The version shows whether one build made
// both.

#include "millrace/images/images.h"

namespace millrace::images {

inline constexpr const char* kImagesLibrary = "libmillrace_images.so";
inline constexpr std::string_view kImagesVersion = MILLRACE_VERSION " " __VERSION__;
inline constexpr const char* kImagesVersionSymbol = "millrace_images_version";
inline constexpr const char* kImagesApiSymbol = "millrace_images_api";

// The smallest size that a decoder may reduce a picture to; 0, 0: it may not reduce.
struct AtLeast {
  int64_t height = 0;
  int64_t width = 0;
};

struct ImagesApi {
  using Decode = Result<Picture> (*)(std::span<const std::byte> file, Colour colour, AtLeast at_least,
                                     std::string_view name);
  Decode jpeg, png, webp;
};

}  // namespace millrace::images
