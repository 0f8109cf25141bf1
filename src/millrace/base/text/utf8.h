// SPDX-License-Identifier: Apache-2.0
#pragma once

// UTF-8 validation and repair. Thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

// Returns the offset of the first byte that is not part of a well-formed sequence (Unicode 15, table 3-7), or
// text.size().
size_t utf8_valid_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) {
  return utf8_valid_prefix(text) == text.size();
}

// Appends `text` to `out` with every maximal ill-formed subpart replaced by U+FFFD, byte for byte as Python's
// bytes.decode("utf-8", errors="replace") does. Returns the number of replacements.
int64_t append_utf8_replaced(std::string_view text, std::string& out);

// Appends `code_point` (a scalar value) as UTF-8.
void append_utf8(uint32_t code_point, std::string& out);

// Writes code points as UTF-8 and returns the end; nullptr when one of them is a surrogate, which UTF-8 cannot encode.
// REQUIRES: `out` has room for 4 bytes per code point and 64 more.
char* write_utf8(std::span<const uint8_t> code_points, char* out);
char* write_utf8(std::span<const uint16_t> code_points, char* out);
char* write_utf8(std::span<const uint32_t> code_points, char* out);

}  // namespace millrace
