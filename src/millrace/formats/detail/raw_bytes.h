// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "millrace/base/io/io.h"

namespace millrace::formats {

// Appends the bytes of a number as they lie in memory: little-endian on every processor that this builds for.
template <class T>
void put(std::string& out, T value) {
  out.append(as_text(std::as_bytes(std::span(&value, 1))));
}

}  // namespace millrace::formats
