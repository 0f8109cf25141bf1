// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/text/byte_map.h"

#include <array>

#include "millrace/base/text/utf8.h"

namespace millrace::tokenizer {
namespace {

constexpr size_t kAlphabetEnd = 0x100 + 68;
constexpr int16_t kNotInAlphabet = -1;

struct ByteMap {
  std::array<uint16_t, 256> code_point{};
  std::array<int16_t, kAlphabetEnd> byte{};
};

constexpr ByteMap make_byte_map() {
  ByteMap map;
  map.byte.fill(kNotInAlphabet);
  uint16_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const auto c = itself ? static_cast<uint16_t>(b) : next++;
    map.code_point[static_cast<size_t>(b)] = c;
    map.byte[c] = static_cast<int16_t>(b);
  }
  return map;
}
constexpr ByteMap kByteMap = make_byte_map();

}  // namespace

char* write_bytes_of(std::string_view spelled, char* out) {
  for (size_t i = 0; i < spelled.size(); ++i) {
    uint32_t c = static_cast<uint8_t>(spelled[i]);
    // The alphabet ends below U+0800, so only sequences of one and two bytes can be in it.
    if (c >= 0xC2 && c < 0xE0 && i + 1 < spelled.size())
      c = (c & 0x1F) << 6 | (static_cast<uint8_t>(spelled[++i]) & 0x3F);
    else if (c >= 0x80)
      c = kAlphabetEnd;
    if (c >= kAlphabetEnd || kByteMap.byte[c] == kNotInAlphabet) return nullptr;
    *out++ = static_cast<char>(kByteMap.byte[c]);
  }
  return out;
}

bool append_bytes_of(std::string_view spelled, std::string& out) {
  const size_t old_size = out.size();
  out.resize(old_size + spelled.size());
  const char* const end = write_bytes_of(spelled, out.data() + old_size);
  out.resize(end == nullptr ? old_size : static_cast<size_t>(end - out.data()));
  return end != nullptr;
}

void append_spelling_of(std::string_view bytes, std::string& out) {
  for (const char b : bytes) append_utf8(kByteMap.code_point[static_cast<uint8_t>(b)], out);
}

uint32_t spelled_character(uint8_t byte) {
  return kByteMap.code_point[byte];
}

}  // namespace millrace::tokenizer
