// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes and reads the fields of Millrace's own binary files: little-endian numbers, and texts after their length.
// Bounds are checked; a field out of bounds makes good() false.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace millrace::sync {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian and copied as they are");

template <class T>
void append_number(std::string& out, T value) {
  static_assert(std::is_integral_v<T>);
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  out.append(bytes.data(), bytes.size());
}

// Appends a text after its length. REQUIRES: `text` has less than 64 KiB.
inline void append_text(std::string& out, std::string_view text) {
  append_number(out, static_cast<uint16_t>(text.size()));
  out += text;
}

// Reads fields from the front.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = take(sizeof value);
    if (good_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number<uint16_t>())); }
  bool good() const { return good_; }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view take(size_t size) {
    good_ = good_ && size <= bytes_.size();
    if (!good_) return {};
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes_;
  bool good_ = true;
};

}  // namespace millrace::sync
