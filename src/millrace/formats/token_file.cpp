// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/token_file.h"

#include <array>
#include <bit>
#include <cstring>

namespace millrace::formats {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

std::string token_file_head(int64_t tokens, size_t width) {
  // llm.c's magic number and version for each width.
  const std::array<int32_t, 3> fields{width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7,
                                      static_cast<int32_t>(tokens)};
  std::string head(kTokenFileHead, '\0');
  std::memcpy(head.data(), fields.data(), sizeof(fields));
  return head;
}

}  // namespace millrace::formats
