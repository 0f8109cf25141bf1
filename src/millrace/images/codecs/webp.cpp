// SPDX-License-Identifier: Apache-2.0
// WebP by libwebp.
#include <webp/decode.h>

#include "millrace/images/codecs/codecs.h"

namespace millrace::images {

Result<Picture> decode_webp(std::span<const std::byte> file, Colour colour, AtLeast, std::string_view name) {
  // SAFETY: libwebp reads bytes.
  const auto* const bytes = reinterpret_cast<const uint8_t*>(file.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes, file.size(), &features) != VP8_STATUS_OK) {
    return fail(ErrorCode::kCorruption, "{}: this WebP does not decode: its head is damaged", name);
  }
  if (features.has_animation != 0) {
    return fail(ErrorCode::kUnsupported, "{}: this WebP is an animation; single pictures are read", name);
  }
  const bool with_alpha = colour == Colour::kRgba;
  ASSIGN_OR_RETURN(Picture picture, make_picture(features.height, features.width, with_alpha ? 4 : 3, name));
  const int stride = static_cast<int>(picture.width * picture.channels);
  const auto decode_into = with_alpha ? &WebPDecodeRGBAInto : &WebPDecodeRGBInto;
  if (decode_into(bytes, file.size(), picture.pixels.data(), picture.pixels.size(), stride) == nullptr) {
    return fail(ErrorCode::kCorruption, "{}: this WebP does not decode: it is cut off or damaged", name);
  }
  return colour == Colour::kGray ? to_gray(picture) : picture;
}

}  // namespace millrace::images
