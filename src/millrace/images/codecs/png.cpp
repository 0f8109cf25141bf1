// SPDX-License-Identifier: Apache-2.0
// PNG by libpng.
#include <png.h>

#include <algorithm>
#include <cstring>

#include "millrace/images/codecs/codecs.h"

namespace millrace::images {
namespace {

// Holds what libpng allocates. Its functions end by longjmp when they fail, so no other object may live in a function
// that calls them behind setjmp.
struct Decoding {
  std::span<const std::byte> rest;
  png_structp png = nullptr;
  png_infop info = nullptr;
  char message[160] = "out of memory";

  explicit Decoding(std::span<const std::byte> file) : rest(file) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &on_error, &on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
  }
  ~Decoding() { png_destroy_read_struct(&png, &info, nullptr); }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  // Every file becomes RGB or RGBA of 8 bits a channel.
  bool begin(Colour colour) {
    if (info == nullptr || setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_read_fn(png, this, &on_read);
    png_read_info(png, info);
    if (png_get_bit_depth(png, info) == 16) png_set_strip_16(png);  // as Pillow; the other way would round
    png_set_expand(png);
    png_set_gray_to_rgb(png);
    if (colour == Colour::kRgba) {
      png_set_add_alpha(png, 255, PNG_FILLER_AFTER);
    } else {
      png_set_strip_alpha(png);
    }
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }

  bool read(uint8_t* pixels, int64_t height, size_t row_bytes) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "an unknown layout of rows");
    const int passes = png_get_interlace_type(png, info) == PNG_INTERLACE_NONE ? 1 : 7;
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t row = 0; row < height; ++row) {
        png_read_row(png, pixels + static_cast<size_t>(row) * row_bytes, nullptr);
      }
    }
    png_read_end(png, nullptr);  // checks what follows the pixels
    return true;
  }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    auto* const self = static_cast<Decoding*>(png_get_error_ptr(png));
    std::strncpy(self->message, text, sizeof self->message - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep out, size_t size) {
    auto* const self = static_cast<Decoding*>(png_get_io_ptr(png));
    if (size > self->rest.size()) png_error(png, "it is cut off");
    std::memcpy(out, self->rest.data(), size);
    self->rest = self->rest.subspan(size);
  }
};

}  // namespace

Result<Picture> decode_png(std::span<const std::byte> file, Colour colour, AtLeast, std::string_view name) {
  Decoding decoding(file);
  if (!decoding.begin(colour)) {
    return fail(ErrorCode::kCorruption, "{}: this PNG does not decode: {}", name, decoding.message);
  }
  const int64_t channels = colour == Colour::kRgba ? 4 : 3;
  ASSIGN_OR_RETURN(Picture picture, make_picture(png_get_image_height(decoding.png, decoding.info),
                                                 png_get_image_width(decoding.png, decoding.info), channels, name));
  if (!decoding.read(picture.pixels.data(), picture.height, static_cast<size_t>(picture.width * channels))) {
    return fail(ErrorCode::kCorruption, "{}: this PNG does not decode: {}", name, decoding.message);
  }
  return colour == Colour::kGray ? to_gray(picture) : picture;
}

}  // namespace millrace::images
