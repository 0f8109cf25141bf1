// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::tokenizer {

// Bytes [begin, end) of the text that was given to encode.
struct Offset {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Offset&) const = default;
};

}  // namespace millrace::tokenizer
