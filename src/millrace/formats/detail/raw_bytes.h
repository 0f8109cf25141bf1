// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "millrace/base/io/io.h"

namespace millrace::formats {

// Appends the bytes of a number in memory order, which is little-endian on all supported processors.
template <class T>
void put(std::string& out, T value) {
  out.append(as_text(std::as_bytes(std::span(&value, 1))));
}

}  // namespace millrace::formats
