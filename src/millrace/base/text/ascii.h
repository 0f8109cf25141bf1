// SPDX-License-Identifier: Apache-2.0
#pragma once

// Characters of ASCII, whatever the locale, and bytes as hexadecimal digits. Pure functions; thread-safe.

#include <string>
#include <string_view>

namespace millrace {

constexpr bool is_digit(char c) {
  return static_cast<unsigned char>(c - '0') < 10;
}
// Whether `c` is white space: a blank, \t, \n, \v, \f or \r.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Returns two lower-case hexadecimal digits for each byte.
inline std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace millrace
