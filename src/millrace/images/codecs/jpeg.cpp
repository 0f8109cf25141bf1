// SPDX-License-Identifier: Apache-2.0
// JPEG by libjpeg-turbo.
#include <csetjmp>
#include <cstdio>
#include <string>

#include "millrace/images/codecs/codecs.h"
// After <cstdio>: they need size_t and FILE.
#include <jerror.h>
#include <jpeglib.h>

namespace millrace::images {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf failed;
  char message[JMSG_LENGTH_MAX];
};

ErrorManager& manager_of(j_common_ptr info) {
  // SAFETY: Decoding sets `err` to the first member of an ErrorManager.
  return *reinterpret_cast<ErrorManager*>(info->err);
}

[[noreturn]] void on_error(j_common_ptr info) {
  ErrorManager& errors = manager_of(info);
  info->err->format_message(info, errors.message);
  std::longjmp(errors.failed, 1);
}

// libjpeg fills up what is damaged with gray and warns. Pixels that are not those of the file are an error here; what
// only looks odd is none.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      on_error(info);
  }
}

void on_output(j_common_ptr) {}

// Holds what libjpeg allocates. Its functions end by longjmp when they fail, so no other object may live in a function
// that calls them behind setjmp.
struct Decoding {
  jpeg_decompress_struct info = {};
  ErrorManager errors = {};

  Decoding() {
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = &on_error;
    errors.base.emit_message = &on_message;
    errors.base.output_message = &on_output;
    // SAFETY: creating it fails only for want of memory, which is no picture's fault.
    if (setjmp(errors.failed) == 0) jpeg_create_decompress(&info);
  }
  ~Decoding() { jpeg_destroy_decompress(&info); }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  bool begin(std::span<const std::byte> file, Colour colour, AtLeast at_least) {
    if (setjmp(errors.failed) != 0) return false;
    // SAFETY: libjpeg reads bytes.
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), static_cast<unsigned long>(file.size()));
    jpeg_read_header(&info, TRUE);
    const bool is_cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    info.out_color_space = is_cmyk ? JCS_CMYK : colour == Colour::kGray ? JCS_GRAYSCALE : JCS_RGB;
    // Pillow makes gray of the RGB of a file that stores RGB; libjpeg-turbo does the same.
    reduce(at_least);
    jpeg_calc_output_dimensions(&info);
    return true;
  }

  bool read(uint8_t* pixels, size_t row_bytes) {
    if (setjmp(errors.failed) != 0) return false;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = pixels + info.output_scanline * row_bytes;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_abort_decompress(&info);
    return true;
  }

 private:
  // The eighths that keep both sides at or above the smallest. libjpeg rounds sides up.
  void reduce(AtLeast at_least) {
    if (at_least.height == 0) return;
    info.scale_denom = 8;
    for (unsigned eighths = 1; eighths <= 8; eighths *= 2) {
      info.scale_num = eighths;
      if (int64_t{info.image_height} * eighths >= at_least.height * 8 &&
          int64_t{info.image_width} * eighths >= at_least.width * 8) {
        return;
      }
    }
    info.scale_num = 8;
  }
};

// Photoshop stores CMYK inverted, and so does everybody since.
Picture from_cmyk(const Picture& cmyk, bool is_inverted) {
  Picture rgb{.height = cmyk.height, .width = cmyk.width, .channels = 3, .pixels = {}};
  rgb.pixels.resize(cmyk.pixels.size() / 4 * 3);
  for (size_t i = 0; i < cmyk.pixels.size() / 4; ++i) {
    const auto ink = [&](size_t c) { return is_inverted ? 255 - cmyk.pixels[4 * i + c] : cmyk.pixels[4 * i + c]; };
    for (size_t c = 0; c < 3; ++c) {
      rgb.pixels[3 * i + c] = static_cast<uint8_t>((255 - ink(c)) * (255 - ink(3)) / 255);
    }
  }
  return rgb;
}

}  // namespace

Result<Picture> decode_jpeg(std::span<const std::byte> file, Colour colour, AtLeast at_least, std::string_view name) {
  Decoding decoding;
  if (!decoding.begin(file, colour, at_least)) {
    return fail(ErrorCode::kCorruption, "{}: this JPEG does not decode: {}", name, decoding.errors.message);
  }
  const auto& info = decoding.info;
  ASSIGN_OR_RETURN(Picture picture,
                   make_picture(info.output_height, info.output_width, info.out_color_components, name));
  if (!decoding.read(picture.pixels.data(), static_cast<size_t>(picture.width * picture.channels))) {
    return fail(ErrorCode::kCorruption, "{}: this JPEG does not decode: {}", name, decoding.errors.message);
  }
  if (info.out_color_space == JCS_CMYK) {
    picture = from_cmyk(picture, info.saw_Adobe_marker != 0);
    if (colour == Colour::kGray) return to_gray(picture);
  }
  return colour == Colour::kRgba ? with_alpha(picture) : picture;
}

}  // namespace millrace::images
