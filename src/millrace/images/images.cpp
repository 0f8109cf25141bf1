// SPDX-License-Identifier: Apache-2.0
#include "millrace/images/images.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "millrace/base/lazy_library.h"
#include "millrace/images/library.h"

namespace millrace::images {
namespace {

Result<const ImagesApi*> load_api() {
  ASSIGN_OR_RETURN(void* const library, open_lazy_library({.file = kImagesLibrary,
                                                           .version_symbol = kImagesVersionSymbol,
                                                           .version = kImagesVersion,
                                                           .missing = "this build of Millrace decodes no pictures",
                                                           .install = MILLRACE_IMAGES_INSTALL}));
  // SAFETY: library.h declares the symbol with this type.
  return reinterpret_cast<const ImagesApi*>(dlsym(library, kImagesApiSymbol));
}

Result<const ImagesApi*> api() {
  static const Result<const ImagesApi*> loaded = load_api();
  return loaded;
}

bool begins(std::span<const std::byte> file, std::string_view magic, size_t at = 0) {
  return file.size() >= at + magic.size() && std::memcmp(file.data() + at, magic.data(), magic.size()) == 0;
}

enum class Format { kJpeg, kPng, kWebp };

std::optional<Format> format_of(std::span<const std::byte> file) {
  if (begins(file, "\xFF\xD8\xFF")) return Format::kJpeg;
  if (begins(file, "\x89PNG\r\n\x1A\n")) return Format::kPng;
  if (begins(file, "RIFF") && begins(file, "WEBP", 8)) return Format::kWebp;
  return std::nullopt;
}

uint32_t byte_at(std::span<const std::byte> file, size_t at) {
  return std::to_integer<uint32_t>(file[at]);
}

// A PNG begins with 8 bytes, then the chunk IHDR: length, name, width, height, bits a channel, kind of colours.
struct PngKind {
  static constexpr uint32_t kGray = 0, kRgb = 2, kPalette = 3, kGrayAlpha = 4, kRgba = 6;
  uint32_t bits = 0, colours = 0;
};

std::optional<PngKind> kind_of_png(std::span<const std::byte> file) {
  constexpr size_t kBits = 24, kColours = 25;
  if (file.size() <= kColours || !begins(file, "IHDR", 12)) return std::nullopt;
  return PngKind{byte_at(file, kBits), byte_at(file, kColours)};
}

// Pillow makes 255 of everything above 255 there.
Status refuse_deep_gray(const PngKind& kind, std::string_view name) {
  if (kind.bits != 16 || kind.colours != PngKind::kGray) return {};
  return fail(
      ErrorCode::kUnsupported,
      "{}: a gray PNG of 16 bits, such as of depth, which pixels of 8 bits would not hold; store it as an array "
      "(.npy), or as a PNG of 8 bits",
      name);
}

Result<Colour> colour_of_png(std::span<const std::byte> file, std::string_view name) {
  const auto kind = kind_of_png(file);
  if (!kind) return fail(ErrorCode::kCorruption, "{}: a PNG cut off", name);
  RETURN_IF_ERROR(refuse_deep_gray(*kind, name));
  switch (kind->colours) {
    case PngKind::kGray:
      return Colour::kGray;
    case PngKind::kRgb:
    case PngKind::kPalette:
      return Colour::kRgb;
    case PngKind::kRgba:
      return Colour::kRgba;
    default:
      return fail(ErrorCode::kUnsupported,
                  "{}: a PNG of {} bits a channel and colour type {}{}; gray, RGB, RGBA and palettes are read: convert "
                  "it, as with Pillow's convert(\"RGBA\")",
                  name, kind->bits, kind->colours,
                  kind->colours == PngKind::kGrayAlpha ? " (gray with transparency)" : "");
  }
}

// A format that is well known, and not decoded; else empty.
std::string_view other_format(std::span<const std::byte> file) {
  using namespace std::string_view_literals;
  struct Known {
    std::string_view magic;
    size_t at;
    std::string_view name;
  };
  static constexpr Known kKnown[] = {{"II*\0"sv, 0, "TIFF"},
                                     {"MM\0*"sv, 0, "TIFF"},
                                     {"II+\0"sv, 0, "TIFF"},
                                     {"MM\0+"sv, 0, "TIFF"},
                                     {"GIF8"sv, 0, "GIF"},
                                     {"BM"sv, 0, "BMP"},
                                     {"ftypavif"sv, 4, "AVIF"},
                                     {"ftypheic"sv, 4, "HEIC"},
                                     {"\0\0\0\x0CjP  "sv, 0, "JPEG 2000"},
                                     {"\xFF\x4F\xFF\x51"sv, 0, "JPEG 2000"},
                                     {"\xFF\x0A"sv, 0, "JPEG XL"},
                                     {"\0\0\0\x0CJXL "sv, 0, "JPEG XL"}};
  for (const auto& [magic, at, name] : kKnown) {
    if (begins(file, magic, at)) return name;
  }
  return {};
}

// A JPEG is a row of segments, each a marker and its length; the first "start of frame" counts the components.
Result<Colour> colour_of_jpeg(std::span<const std::byte> file, std::string_view name) {
  for (size_t at = 2; at + 9 < file.size();) {
    if (byte_at(file, at) != 0xFF) break;
    const uint32_t marker = byte_at(file, at + 1);
    if (marker == 0xFF) {  // a byte that fills
      ++at;
      continue;
    }
    const bool is_frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (is_frame) {
      const uint32_t components = byte_at(file, at + 9);
      if (components == 1) return Colour::kGray;
      if (components == 3) return Colour::kRgb;
      return fail(ErrorCode::kUnsupported,
                  "{}: a JPEG of {} components; gray and RGB are read: convert it, as with Pillow's convert(\"RGB\")",
                  name, components);
    }
    const size_t length = byte_at(file, at + 2) << 8 | byte_at(file, at + 3);
    if (length < 2) break;
    at += 2 + length;
  }
  return fail(ErrorCode::kCorruption, "{}: a JPEG without the start of a frame", name);
}

// The part of a side that is resized, in pixels of the source. Pillow has 32 bits here, too.
struct Range {
  float begin = 0;
  float end = 0;
};
Range range_of(double begin, double end) {
  return {static_cast<float>(begin), static_cast<float>(end)};
}

// Weights of the source's pixels in each pixel of the result, in 1/2^22.
struct Weights {
  struct Taps {
    int64_t first = 0;  // pixel
    int64_t count = 0;
    size_t at = 0;  // in `values`
  };
  std::vector<Taps> taps;
  std::vector<int32_t> values;
};

constexpr int kWeightBits = 22;

Weights triangle_weights(int64_t in_size, const Range& range, int64_t out_size) {
  Weights weights;
  const double scale = static_cast<double>(range.end - range.begin) / static_cast<double>(out_size);
  const double support = std::max(scale, 1.0);
  std::vector<double> row;
  for (int64_t out = 0; out < out_size; ++out) {
    const double centre = static_cast<double>(range.begin) + (static_cast<double>(out) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), in_size);
    row.clear();
    double sum = 0;
    for (int64_t in = first; in < end; ++in) {
      const double distance = std::abs((static_cast<double>(in) - centre + 0.5) * (1.0 / support));
      row.push_back(distance < 1.0 ? 1.0 - distance : 0.0);
      sum += row.back();
    }
    weights.taps.push_back({first, end - first, weights.values.size()});
    for (double value : row) {
      if (sum != 0) value *= 1.0 / sum;
      weights.values.push_back(static_cast<int32_t>(0.5 + value * (1 << kWeightBits)));
    }
  }
  return weights;
}

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

// Each channel's sum has a name of its own, so that it stays in a register.
template <int kChannels>
void resize_row(const uint8_t* in, const Weights& weights, uint8_t* out) {
  constexpr int32_t kHalf = 1 << (kWeightBits - 1);
  for (const auto& [first, count, at] : weights.taps) {
    [[maybe_unused]] int32_t a = kHalf, b = kHalf, c = kHalf, d = kHalf;
    const uint8_t* pixel = in + first * kChannels;
    const int32_t* const values = weights.values.data() + at;
    for (int64_t i = 0; i < count; ++i, pixel += kChannels) {
      const int32_t weight = values[i];
      a += pixel[0] * weight;
      if constexpr (kChannels > 1) {
        b += pixel[1] * weight;
        c += pixel[2] * weight;
      }
      if constexpr (kChannels > 3) d += pixel[3] * weight;
    }
    *out++ = rounded(a);
    if constexpr (kChannels > 1) {
      *out++ = rounded(b);
      *out++ = rounded(c);
    }
    if constexpr (kChannels > 3) *out++ = rounded(d);
  }
}

// Adds a row of pixels, weighted.
void add_row(const uint8_t* __restrict from, int32_t weight, int32_t* __restrict sums, size_t size) {
  for (size_t i = 0; i < size; ++i) sums[i] += from[i] * weight;
}

Picture resize_part(const PictureView& in, const Range& x, const Range& y, int64_t height, int64_t width) {
  const Weights across = triangle_weights(in.width, x, width), down = triangle_weights(in.height, y, height);
  const int64_t first_row = down.taps.front().first, row_end = down.taps.back().first + down.taps.back().count;
  const auto in_row = static_cast<size_t>(in.width * in.channels), out_row = static_cast<size_t>(width * in.channels);
  std::vector<uint8_t> rows(static_cast<size_t>(row_end - first_row) * out_row);
  for (int64_t row = first_row; row < row_end; ++row) {
    const uint8_t* const from = in.pixels.data() + static_cast<size_t>(row) * in_row;
    uint8_t* const to = rows.data() + static_cast<size_t>(row - first_row) * out_row;
    switch (in.channels) {
      case 1:
        resize_row<1>(from, across, to);
        break;
      case 3:
        resize_row<3>(from, across, to);
        break;
      default:
        resize_row<4>(from, across, to);
        break;
    }
  }
  Picture out{.height = height, .width = width, .channels = in.channels, .pixels = {}};
  out.pixels.resize(static_cast<size_t>(height) * out_row);
  std::vector<int32_t> sums(out_row);
  for (int64_t row = 0; row < height; ++row) {
    const auto& [first, count, at] = down.taps[static_cast<size_t>(row)];
    std::ranges::fill(sums, 1 << (kWeightBits - 1));
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* const from = rows.data() + static_cast<size_t>(first - first_row + i) * out_row;
      const int32_t weight = down.values[at + static_cast<size_t>(i)];
      add_row(from, weight, sums.data(), out_row);
    }
    uint8_t* const to = out.pixels.data() + static_cast<size_t>(row) * out_row;
    for (size_t v = 0; v < out_row; ++v) to[v] = rounded(sums[v]);
  }
  return out;
}

Picture resize_padded(const PictureView& picture, int64_t height, int64_t width) {
  const auto w = static_cast<double>(picture.width), h = static_cast<double>(picture.height);
  const double ratio = w / h, wanted = static_cast<double>(width) / static_cast<double>(height);
  int64_t inner_height = height, inner_width = width;
  if (ratio > wanted) inner_height = std::llrint(std::nearbyint(h / w * static_cast<double>(width)));
  if (ratio < wanted) inner_width = std::llrint(std::nearbyint(w / h * static_cast<double>(height)));
  inner_height = std::max<int64_t>(inner_height, 1);
  inner_width = std::max<int64_t>(inner_width, 1);
  const Picture inner = resize_part(picture, range_of(0, w), range_of(0, h), inner_height, inner_width);
  Picture out{.height = height, .width = width, .channels = picture.channels, .pixels = {}};
  out.pixels.resize(static_cast<size_t>(height * width * picture.channels));
  const auto beside = [](int64_t all, int64_t part) {
    return std::llrint(std::nearbyint(static_cast<double>(all - part) * 0.5));
  };
  const int64_t top = beside(height, inner_height), left = beside(width, inner_width);
  const auto row_bytes = static_cast<size_t>(inner_width * picture.channels);
  for (int64_t row = 0; row < inner_height; ++row) {
    std::memcpy(out.pixels.data() + ((top + row) * width + left) * picture.channels,
                inner.pixels.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  }
  return out;
}

// What a decoder must keep of a picture so that it still covers the size.
AtLeast smallest(const DecodeOptions& options) {
  if (!options.reduced || options.height == 0) return {};
  return {options.height, options.width};
}

}  // namespace

Result<Colour> parse_colour(std::string_view name) {
  if (name == "gray") return Colour::kGray;
  if (name == "rgb") return Colour::kRgb;
  if (name == "rgba") return Colour::kRgba;
  return fail(ErrorCode::kInvalidArgument, "colour is 'gray', 'rgb' or 'rgba', not '{}'", name);
}

Result<Fit> parse_fit(std::string_view name) {
  if (name == "crop") return Fit::kCrop;
  if (name == "stretch") return Fit::kStretch;
  if (name == "pad") return Fit::kPad;
  return fail(ErrorCode::kInvalidArgument, "fit is 'crop', 'stretch' or 'pad', not '{}'", name);
}

Result<Colour> stored_colour(std::span<const std::byte> file, std::string_view name) {
  const auto format = format_of(file);
  if (format == Format::kPng) return colour_of_png(file, name);
  if (format == Format::kJpeg) return colour_of_jpeg(file, name);
  const std::string_view other = format ? "WebP" : other_format(file);
  if (!other.empty()) {
    return fail(ErrorCode::kUnsupported, "{}: it is {}, and PNG and JPEG are read: convert it, as with Pillow", name,
                other);
  }
  return fail(ErrorCode::kCorruption, "{}: neither PNG nor JPEG ({} bytes)", name, file.size());
}

bool is_picture(std::span<const std::byte> file) {
  return format_of(file).has_value();
}

Picture resize(const Picture& picture, int64_t height, int64_t width, Fit fit) {
  return resize(PictureView{picture.height, picture.width, picture.channels, picture.pixels}, height, width, fit);
}

Picture resize(const PictureView& picture, int64_t height, int64_t width, Fit fit) {
  if (picture.height == height && picture.width == width) {
    return {height, width, picture.channels, {picture.pixels.begin(), picture.pixels.end()}};
  }
  if (fit == Fit::kPad) return resize_padded(picture, height, width);
  const auto w = static_cast<double>(picture.width), h = static_cast<double>(picture.height);
  Range x = range_of(0, w), y = range_of(0, h);
  if (fit == Fit::kCrop) {
    const double ratio = w / h, wanted = static_cast<double>(width) / static_cast<double>(height);
    double crop_width = w, crop_height = h;
    if (ratio > wanted) crop_width = wanted * h;
    if (ratio < wanted) crop_height = w / wanted;
    x = range_of((w - crop_width) * 0.5, (w - crop_width) * 0.5 + crop_width);
    y = range_of((h - crop_height) * 0.5, (h - crop_height) * 0.5 + crop_height);
  }
  return resize_part(picture, x, y, height, width);
}

Result<Picture> decode(std::span<const std::byte> file, const DecodeOptions& options, std::string_view name) {
  const auto format = format_of(file);
  if (!format) {
    const std::string_view other = other_format(file);
    if (other.empty()) {
      return fail(ErrorCode::kCorruption, "{}: neither JPEG, PNG nor WebP ({} bytes)", name, file.size());
    }
    return fail(ErrorCode::kUnsupported, "{}: it is {}, and JPEG, PNG and WebP are decoded: convert it, as with Pillow",
                name, other);
  }
  if (*format == Format::kPng) {
    if (const auto kind = kind_of_png(file)) RETURN_IF_ERROR(refuse_deep_gray(*kind, name));
  }
  ASSIGN_OR_RETURN(const ImagesApi* const library, api());
  const auto decoder = *format == Format::kJpeg  ? library->jpeg
                       : *format == Format::kPng ? library->png
                                                 : library->webp;
  if (decoder == nullptr) {
    return fail(ErrorCode::kUnsupported, "{}: this build of Millrace was made without the codec of this picture: {}",
                name, MILLRACE_IMAGES_INSTALL);
  }
  ASSIGN_OR_RETURN(Picture picture, decoder(file, options.colour, smallest(options), name));
  if (options.height == 0) return picture;
  return resize(picture, options.height, options.width, options.fit);
}

}  // namespace millrace::images
