// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/put_picture.h"

#include <array>
#include <cstring>

namespace millrace::lerobot {
namespace {

const std::array<float, 256>& unit_floats() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 255.0F;
    return values;
  }();
  return table;
}

template <size_t kChannels>
void put_planes(std::span<const std::byte> from, bool is_float, std::byte* to) {
  const size_t pixels = from.size() / kChannels;
  if (!is_float) {
    for (size_t i = 0; i < pixels; ++i) {
      for (size_t c = 0; c < kChannels; ++c) to[c * pixels + i] = from[kChannels * i + c];
    }
    return;
  }
  const auto& table = unit_floats();
  auto* const out = reinterpret_cast<float*>(to);
  for (size_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < kChannels; ++c) {
      out[c * pixels + i] = table[std::to_integer<size_t>(from[kChannels * i + c])];
    }
  }
}

}  // namespace

void put_picture(std::span<const std::byte> from, const PictureLayout& layout, std::byte* to) {
  if (layout.channels_last && !layout.is_float) {
    std::memcpy(to, from.data(), from.size());
  } else if (layout.channels_last) {
    const auto& table = unit_floats();
    auto* const out = reinterpret_cast<float*>(to);
    for (size_t i = 0; i < from.size(); ++i) out[i] = table[std::to_integer<size_t>(from[i])];
  } else if (layout.channels == 3) {
    put_planes<3>(from, layout.is_float, to);
  } else if (layout.channels == 1) {
    put_planes<1>(from, layout.is_float, to);
  } else {
    put_planes<4>(from, layout.is_float, to);
  }
}

}  // namespace millrace::lerobot
